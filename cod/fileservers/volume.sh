# What COD runs on a file server, with the rights of root, by `sh -s`: the functions that both
# drivers share.
#
# Variables that are set before: driver root exports number path size sequence may_make source gid
# squash clients homes snapshots dropped erase sec (cod/fileservers/script.py). The last line calls
# `apply` or `list`. An answer is lines of KEY=VALUE; a failure is a sentence after "error=" and
# exit status 10. Every step may be repeated: one that was cut short is done again by the next
# attempt.

set -eu
LC_ALL=C
PATH=/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin
export LC_ALL PATH
umask 022

fail() {
    echo "error=$*"
    exit 10
}

# Runs a command; where it fails, its last line on standard error is the sentence.
run() {
    if said=$("$@" 2>&1 </dev/null); then
        return 0
    fi
    fail "$1 failed: $(printf '%s' "$said" | tail -n 1)"
}

ready() {
    [ -d "$root" ] ||
        fail "the directory $root is missing on the file server: mount its file system, or make it"
    command -v flock >/dev/null ||
        fail "the program flock (util-linux) is not installed on the file server"
    mkdir -p "$exports"
    exec 9>"$exports/.cod.lock"
    flock -w 30 9 || fail "another change of this file server is being carried out and does not end"
}

# The last change that was carried out for export $1; 0 where there was none.
applied() {
    found=$(sed -n '1s/^# cod sequence \([0-9][0-9]*\)$/\1/p' "$(fragment "$1")" 2>/dev/null || :)
    echo "${found:-0}"
}

# Replaces file $1 by what is on standard input, at once.
put() {
    cat >"$1.new"
    sync "$1.new" 2>/dev/null || sync
    mv -f "$1.new" "$1"
}

system() {
    stat -f -c %T "$root"
}

dataset() { # of the ZFS data set whose volume is in $1
    zfs list -H -o name "$root" | sed "s|\$|/$(basename "$1")|"
}

make_volume() {
    [ -e "$path" ] && return
    [ "$may_make" = yes ] || fail "the directory $path is missing on the file server, which has lost the volume's" \
        "data or has not mounted its file system: repair that, or remake the volume to begin it anew, empty"
    [ -z "$source" ] || [ -d "$root/.snapshots/$source" ] || [ "$(system)" = zfs ] ||
        fail "the snapshot $source is missing on the file server"
    case $(system) in
    btrfs)
        if [ -n "$source" ]; then
            run btrfs subvolume snapshot "$root/.snapshots/$source" "$path"
        else
            run btrfs subvolume create "$path"
        fi ;;
    zfs)
        if [ -n "$source" ]; then
            origin=$(zfs list -H -o name -t snapshot | grep "@cod-${source%%/*}-${source#*/}\$") ||
                fail "the snapshot $source is missing on the file server"
            run zfs clone "$origin" "$(dataset "$path")"
        else
            run zfs create "$(dataset "$path")"
        fi ;;
    *)
        [ -z "$source" ] ||
            fail "the file system of $root has no snapshots to copy: they need Btrfs or ZFS"
        run mkdir "$path" ;;
    esac
}

# Who may write at the top of the volume. In a home volume only root may, so that nobody can put a
# link in the way.
give() {
    if [ "$kind" = home ]; then
        run chown root:root "$path"
        run chmod 0755 "$path"
    elif [ -n "$gid" ]; then
        run chown "root:$gid" "$path"
        run chmod 2770 "$path"
    else
        run chown root:root "$path"
        run chmod 1777 "$path"
    fi
}

make_homes() {
    printf '%s\n' "$homes" | while read -r name uid group; do
        [ -n "$name" ] || continue
        home=$path/$name
        if [ -e "$home" ] && [ "$(stat -c %u "$home")" != "$uid" ]; then
            # Somebody else had the name before: their files are not given to its new owner.
            run mv -T "$home" "$path/.$name.$(stat -c %u "$home").$(date +%s)"
        fi
        if [ ! -e "$home" ]; then
            run rm -rf "$path/.new-$name"
            run mkdir -m 0700 "$path/.new-$name"
            [ ! -d /etc/skel ] || run cp -a /etc/skel/. "$path/.new-$name"
            run chmod 0700 "$path/.new-$name"
            run chown -hR "$uid:$group" "$path/.new-$name"
            run mv -T "$path/.new-$name" "$home"
        fi
    done
}

# Holds the volume to its size, and says by what.
hold() {
    case $(system) in
    btrfs)
        btrfs qgroup show "$root" >/dev/null 2>&1 || run btrfs quota enable "$root"
        run btrfs qgroup limit "$size" "$path"
        echo enforced=btrfs ;;
    zfs)
        run zfs set "refquota=$size" "$(dataset "$path")"
        echo enforced=zfs ;;
    xfs)
        mounted=$(stat -c %m "$root")
        if command -v xfs_quota >/dev/null && grep -Eq "^[^ ]+ $mounted xfs [^ ]*(prjquota|pquota)" /proc/mounts; then
            run xfs_quota -x -c "project -s -p $path $number" "$mounted"
            run xfs_quota -x -c "limit -p bhard=$size $number" "$mounted"
            echo enforced=project
        else
            echo enforced=none
        fi ;;
    *)
        echo enforced=none ;;
    esac
}

keep_snapshots() {
    kept=$root/.snapshots/$id
    for name in $snapshots; do
        case $(system) in
        btrfs)
            mkdir -p -m 0700 "$root/.snapshots"
            mkdir -p "$kept"
            [ -d "$kept/$name" ] || run btrfs subvolume snapshot -r "$path" "$kept/$name" ;;
        zfs)
            snapshot="$(dataset "$path")@cod-$id-$name"
            zfs list -H "$snapshot" >/dev/null 2>&1 || run zfs snapshot "$snapshot" ;;
        *) fail "the file system of $root has no snapshots: they need Btrfs or ZFS" ;;
        esac
    done
    for name in $dropped; do
        case $(system) in
        btrfs) [ ! -d "$kept/$name" ] || run btrfs subvolume delete "$kept/$name" ;;
        zfs)
            snapshot="$(dataset "$path")@cod-$id-$name"
            ! zfs list -H "$snapshot" >/dev/null 2>&1 || run zfs destroy "$snapshot" ;;
        esac
    done
}

erase_volume() {
    close_path
    case $(system) in
    btrfs)
        for kept in "$root/.snapshots/$id"/*; do
            [ ! -d "$kept" ] || run btrfs subvolume delete "$kept"
        done
        [ ! -d "$root/.snapshots/$id" ] || run rmdir "$root/.snapshots/$id"
        [ ! -d "$path" ] || run btrfs subvolume delete "$path" ;;
    zfs)
        if zfs list -H "$(dataset "$path")" >/dev/null 2>&1; then
            run zfs destroy -r "$(dataset "$path")"
        fi ;;
    *)
        # Much data takes long: out of the way first, then as much as one attempt has time for.
        gone=$root/.erased-$id
        [ ! -d "$path" ] || run mv -T "$path" "$gone"
        if ! timeout 40 rm -rf "$gone"; then
            [ ! -e "$gone" ] || { echo goes_on=yes; exit 0; }
        fi ;;
    esac
}

apply() {
    [ "$1" = end ] # the script has arrived whole
    case $path in "$root"/*) ;; *) fail "$path is not in $root: the site file names another root now" ;; esac
    ready
    seen=$(applied "$number")
    [ "$seen" -le "$sequence" ] || fail "a newer change ($seen) was carried out already"
    if [ "$erase" = yes ]; then
        clients=
        withdraw "$number"
        erase_volume
        forget "$number"
        echo enforced=none
        return
    fi
    make_volume
    hold
    give
    make_homes
    keep_snapshots
    export_volume
}

# "export=NUMBER SEQUENCE" for each volume that this server has, exported as its file says.
list() {
    [ "$1" = end ]
    ready
    shown=$(exported) || fail "$shown"
    for file in $(fragments); do
        found=$(numbered "$file")
        known=$(applied "$found")
        wanted=no
        ! is_export "$file" || wanted=yes
        there=no
        ! is_shown "$shown" "$found" || there=yes
        [ "$wanted" = "$there" ] || known=0
        echo "export=$found $known"
    done
}

# Withdraws an export that belongs to no volume any more. Its data stays.
withdraw_stray() {
    [ "$1" = end ]
    ready
    withdraw "$number"
    forget "$number"
}
