# Two commands matter to a newcomer: `make demo` and `make test`.
.venv/bin/cod: pyproject.toml
	.ci/install-system demo
	python3 -m venv .venv
	.venv/bin/pip install --quiet --upgrade pip
	.venv/bin/pip install --quiet -e '.[dev]'
	touch $@
