#!/bin/sh
# Give Debian's ypserv the accounts of virtual clusters: nis-refresh.sh VCLUSTER...
# Each has an NIS domain of its own, open to its own addresses only. Domains of virtual clusters
# that are not named are removed. When the COD server does not answer, what there is stays.
set -u
keep=/var/lib/cod-nis failed=0
mkdir -p "$keep"
for name; do
    cod vcluster nis "$name" --dir "$keep/$name" > /dev/null || failed=1
done

for folder in "$keep"/*/; do
    [ -s "$folder/domain" ] || continue
    maps=/var/yp/$(cat "$folder/domain") name=$(basename "$folder")
    case " $* " in
        *" $name "*) ;;
        *) rm -rf "$maps" "$folder"; continue ;;
    esac
    mkdir -p "$maps"
    for map in "$folder"/maps/*; do
        /usr/lib/yp/makedbm -m "$(hostname)" "$map" "$maps/${map##*/}" || failed=1
    done
    for map in "$maps"/*; do
        [ -e "$folder/maps/${map##*/}" ] || rm -f "$map"
    done
done
[ ! -s /run/ypserv.pid ] || /usr/lib/yp/makedbm -c    # ypserv forgets the maps it holds open

{ echo 255.0.0.0 127.0.0.0; cat "$keep"/*/securenets; } > /var/yp/securenets.new
{ cat "$keep"/*/ypserv.conf; echo '* : * : * : deny'; } > /etc/ypserv.conf.new
if ! cmp -s /var/yp/securenets.new /var/yp/securenets || ! cmp -s /etc/ypserv.conf.new /etc/ypserv.conf; then
    mv /var/yp/securenets.new /var/yp/securenets
    mv /etc/ypserv.conf.new /etc/ypserv.conf
    ${RESTART:-systemctl try-restart ypserv}
fi
exit $failed
