# Exports of NFS-Ganesha: a file for each volume, an index of them that its configuration includes,
# and D-Bus.

fragment() {
    echo "$exports/$1.conf"
}

fragments() {
    find "$exports" -maxdepth 1 -name '[0-9]*.conf'
}

numbered() {
    basename "$1" .conf
}

is_export() {
    grep -q '^EXPORT' "$1"
}

call() {
    method=$1
    shift
    dbus-send --system --print-reply --reply-timeout=20000 --dest=org.ganesha.nfsd /org/ganesha/nfsd/ExportMgr \
        "org.ganesha.nfsd.exportmgr.$method" "$@" 2>&1 </dev/null
}

exported() {
    command -v dbus-send >/dev/null || {
        echo "the program dbus-send is not installed on the file server"
        return 1
    }
    if answer=$(call ShowExports); then
        printf '%s\n' "$answer"
    else
        printf 'NFS-Ganesha does not answer by D-Bus: %s\n' "$(printf '%s' "$answer" | tail -n 1)"
        return 1
    fi
}

is_shown() {
    printf '%s\n' "$1" | grep -Eq "^ *uint16 $2\$"
}

# NFS-Ganesha knows file systems by their mounts: a Btrfs subvolume needs one of its own. After a
# restart of the host COD finds the export missing, and comes here again.
open_path() {
    if [ "$(system)" = btrfs ] && ! mountpoint -q "$path"; then
        run mount --bind "$path" "$path"
    fi
}

close_path() {
    if [ -d "$path" ] && [ "$(system)" = btrfs ] && mountpoint -q "$path"; then
        run umount "$path"
    fi
}

# Names the files of all exports, without that of export $1: an include of a file that is missing
# keeps NFS-Ganesha from starting.
index() {
    fragments | grep -vxF "$(fragment "${1:-none}")" | sort | sed 's/.*/%include "&"/' |
        put "$exports/cod.conf"
}

forget() {
    index "$1"
    rm -f "$(fragment "$1")"
}

withdraw() {
    shown=$(exported) || fail "$shown"
    # First so that a restart does not bring it back, then from the running server.
    printf '# cod sequence %s\n' "$sequence" | put "$(fragment "$1")"
    index
    if is_shown "$shown" "$1"; then
        answer=$(call RemoveExport "uint16:$1") ||
            fail "NFS-Ganesha refuses: $(printf '%s' "$answer" | tail -n 1)"
    fi
}

export_volume() {
    if [ -z "$clients" ]; then
        withdraw "$number"
        return
    fi
    shown=$(exported) || fail "$shown"
    open_path
    case $squash in root) ids=Root_Squash ;; all) ids=All_Squash ;; *) ids=No_Root_Squash ;; esac
    {
        printf '# cod sequence %s\n' "$sequence"
        printf 'EXPORT {\n  Export_Id = %s;\n  Path = "%s";\n  Pseudo = "%s";\n' "$number" "$path" "$path"
        printf '  Protocols = 4;\n  Transports = TCP;\n  SecType = %s;\n' "$sec"
        printf '  Access_Type = None;\n'
        printf '  Squash = %s;\n  Anonymous_Uid = 65534;\n  Anonymous_Gid = 65534;\n' "$ids"
        printf '  FSAL { Name = VFS; }\n'
        printf '%s\n' "$clients" | while read -r network mode; do
            access=RW
            [ "$mode" = rw ] || access=RO
            printf '  CLIENT { Clients = %s; Access_Type = %s; Protocols = 4;' "$network" "$access"
            printf ' Squash = %s; SecType = %s; }\n' "$ids" "$sec"
        done
        printf '}\n'
    } | put "$exports/$number.next"
    method=AddExport
    ! is_shown "$shown" "$number" || method=UpdateExport
    answer=$(call "$method" "string:$exports/$number.next" "string:EXPORT(Export_Id=$number)") ||
        fail "NFS-Ganesha refuses the export: $(printf '%s' "$answer" | tail -n 1)"
    mv -f "$exports/$number.next" "$(fragment "$number")"
    index
}
