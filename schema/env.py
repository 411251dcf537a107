"""Alembic's environment: runs the migrations over the connection that `cod.store.schema` hands
in."""

from alembic import context

from cod.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transaction_per_migration=True,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
