# Exports of the kernel's NFS server: a file for each volume in /etc/exports.d, and exportfs.

fragment() {
    echo "$exports/cod-$1.exports"
}

fragments() {
    find "$exports" -maxdepth 1 -name 'cod-[0-9]*.exports'
}

numbered() {
    basename "$1" .exports | sed 's/^cod-//'
}

is_export() {
    grep -q '^/' "$1"
}

# The paths that are exported, one a line.
exported() {
    command -v exportfs >/dev/null || {
        echo "the program exportfs is not installed on the file server"
        return 1
    }
    if answer=$(exportfs -s 2>&1 </dev/null); then
        printf '%s\n' "$answer"
    else
        printf 'exportfs failed: %s\n' "$(printf '%s' "$answer" | tail -n 1)"
        return 1
    fi
}

is_shown() {
    own=$(sed -n 's/^\(\/[^ ]*\) .*/\1/p' "$(fragment "$2")" | head -n 1)
    [ -n "$own" ] && printf '%s\n' "$1" |
        awk -v own="$own" '$1 == own { found = 1 } END { exit !found }'
}

close_path() {
    :
}

forget() {
    rm -f "$(fragment "$1")"
}

publish() {
    said=$(exportfs -ra 2>&1 </dev/null) ||
        fail "exportfs failed: $(printf '%s' "$said" | tail -n 1)"
    shown=$(exported) || fail "$shown"
}

withdraw() {
    printf '# cod sequence %s\n' "$sequence" | put "$(fragment "$1")"
    publish
    if [ -n "$path" ] && printf '%s\n' "$shown" | awk -v own="$path" '$1 == own { found = 1 } END { exit !found }'; then
        fail "exportfs still shows $path: another file of exports names it"
    fi
}

export_volume() {
    if [ -z "$clients" ]; then
        withdraw "$number"
        return
    fi
    case $squash in root) ids=root_squash ;; all) ids=all_squash ;; *) ids=no_root_squash ;; esac
    # Where the volume is no file system of its own, a forged file handle must not lead out of it.
    tree=subtree_check
    case $(system) in btrfs | zfs) tree=no_subtree_check ;; esac
    {
        printf '# cod sequence %s\n%s' "$sequence" "$path"
        printf '%s\n' "$clients" | while read -r network mode; do
            printf ' %s(%s,sync,sec=%s,%s,%s)' "$network" "$mode" "$sec" "$ids" "$tree"
        done
        printf '\n'
    } | put "$(fragment "$number")"
    publish
    printf '%s\n' "$shown" | awk -v own="$path" '$1 == own { found = 1 } END { exit !found }' ||
        fail "exportfs does not show $path after it was exported"
}
