#!/bin/sh
# Makes keytabs of nodes by MIT's kadmin, and removes their principals: the `keytab_command` of COD.
#
#     keytab.sh make HOST REALM      the keytab on standard output
#     keytab.sh remove HOST REALM
#
# COD's principal is cod/admin, with its key in /etc/cod/kadmin.keytab, which the user of COD's part
# `edge` reads. On the KDC, in kadm5.acl: cod/admin@REALM acdi host/*@REALM, and the same for nfs/*.
set -eu
umask 077
[ ! -r "$0.conf" ] || . "$0.conf" # may set ADMIN, KEYTAB, KRB5_CONFIG
verb=$1 host=$2 realm=$3
ask() { # three times at most: COD gives 60 s
    timeout --foreground 15 kadmin -r "$realm" -k -t "${KEYTAB:-/etc/cod/kadmin.keytab}" \
        -p "${ADMIN:-cod/admin@$realm}" "$@" && return
    status=$?
    [ "$status" != 124 ] || echo "kadmin: no answer within 15 s" >&2
    return "$status"
}
case $verb in
make) query="addprinc -randkey" fine="already exists" ;;
remove) query="delprinc -force" fine="does not exist" ;;
esac

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for service in host nfs; do
    # shellcheck disable=SC2086 # two words
    ask $query "$service/$host@$realm" >"$folder/said" 2>&1 || grep -q "$fine" "$folder/said" || {
        tail -n 1 "$folder/said" >&2
        exit 1
    }
done
[ "$verb" = make ] || exit 0
# new keys each time: those on the disk of an earlier installation are worth nothing
ask ktadd -q -k "$folder/keytab" "host/$host@$realm" "nfs/$host@$realm" >&2
[ -s "$folder/keytab" ] # some errors do not show in kadmin's status
cat "$folder/keytab"
