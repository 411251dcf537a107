#!/bin/sh
# Ansible's dynamic inventory: ansible-inventory -i cod.sh --graph. The server and the token are
# those of COD_SERVER, COD_CA_FILE and COD_TOKEN.
exec cod inventory "$@"
