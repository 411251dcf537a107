#!/bin/bash
# A virtual cluster manager in the shell: vcm.sh CONFIG, where CONFIG is the vcm.toml that `cod vcm
# enroll` writes.
#
# It keeps as many nodes as the file `wanted` beside CONFIG says (a number; it may change at any
# time), and writes those that can be used into the file `members` there, a host name and an address
# on each line. It needs bash 5, coreutils, flock, openssl and xmllint, and was written from
# docs/nmp alone; the names of sections below are that page's.
set -u
export LC_ALL=C  # lengths are bytes

folder=$(cd "$(dirname "$1")" && pwd) && config=$folder/$(basename "$1")
state=$folder/state
vcluster=$(sed -n 's/^vcluster *= *"\(.*\)".*/\1/p' "$config")
read -ra servers <<<"$(sed -n 's/^servers *= *\[\(.*\)\].*/\1/p' "$config" | tr -d '" ' | tr ',' ' ')"
mkdir -p "$state/nodes" "$state/requests"
exec 9>"$state/lock"
flock -n 9 || { echo "another VCM uses $state" >&2; exit 1; }

log() { echo "$(date +%T) $*" >&2; }

# ---- What is kept: one small file a thing, replaced as a whole and on disk before it is
# acknowledged.

put() {  # FILE TEXT
    printf '%s' "$2" >"$1.new" && sync "$1.new" && mv "$1.new" "$1" && sync "$(dirname "$1")"
}
get() { [ -f "$1" ] && cat "$1"; }
drop() { [ ! -e "$1" ] || { rm -f "$1" && sync "$(dirname "$1")"; }; }
[ -f "$state/birth" ] || put "$state/birth" "$(head -c 4 /dev/urandom | od -An -tx1 | tr -d ' \n')"
seen=$(get "$state/seen" || echo 0)

# A node's file: HOSTNAME ADDRESS STATE LEAVING, where LEAVING is - or what it leaves for.
write_members() {
    local file host address what leaving lines=""
    for file in "$state"/nodes/*; do
        [ -f "$file" ] || continue
        read -r host address what leaving <"$file"
        [ "$what" = active ] && [ "$leaving" = - ] && lines+="$host $address"$'\n'
    done
    [ "$(get "$folder/members")" = "${lines%$'\n'}" ] || put "$folder/members" "$lines"
}
leave() {  # NODE WHAT-FOR: take it out of use, before COD hears of it
    local host address what _
    read -r host address what _ <"$state/nodes/$1" || return
    put "$state/nodes/$1" "$host $address $what $2"$'\n'
    write_members
}
is_name() { [[ $1 =~ ^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$ ]]; }

# ---- On the wire: frames like HTTP's, one XML element in each.

number=0
say() {  # VERB BODY [IN-REPLY-TO]
    number=$((number + 1)) id=v$$-$number
    printf 'NMP/1.0 %s\r\nMessage-Id: %s\r\n%sContent-Length: %d\r\n\r\n%s' \
        "$1" "$id" "${3:+In-Reply-To: $3$'\r\n'}" "${#2}" "$2" >&"$to" 2>/dev/null
}
declare -A asked  # questions without an answer: their Message-Ids -> the verb and what it is about
ask() {  # VERB BODY WHAT
    [ "${#asked[@]}" -lt 60 ] || return
    say "$1" "$2"
    asked[$id]="$1 $3"
}
field() { xmllint --nonet --xpath "string($1)" - <<<"$body" 2>/dev/null; }
count() { xmllint --nonet --xpath "count($1)" - <<<"$body" 2>/dev/null; }

# One whole message into verb, message, answers, sequence, body; 1: none has come within a second,
# 2: the end.
line="" head=()
hear() {
    local piece="" length=0 each got
    while :; do
        IFS= read -r -t 1 -u "$from" piece
        got=$?
        line+=$piece
        [ "$got" -le 128 ] || return 1
        [ "$got" -eq 0 ] || return 2
        line=${line%$'\r'}
        if [ -n "$line" ]; then head+=("$line") line=""; continue; fi
        [ "${#head[@]}" -eq 0 ] || break  # an empty line before a start line is passed over
    done
    [[ ${head[0]} =~ ^NMP/1\.[0-9]+\ ([a-z-]+)$ ]] || { log "not spoken here: ${head[0]}"; return 2; }
    verb=${BASH_REMATCH[1]} message="" answers="" sequence=0
    for each in "${head[@]:1}"; do
        case ${each,,} in
            message-id:*) message=${each#*:} message=${message// /} ;;
            in-reply-to:*) answers=${each#*:} answers=${answers// /} ;;
            sequence:*) sequence=${each#*:} sequence=${sequence// /} ;;
            content-length:*) length=${each#*:} length=${length// /} ;;
        esac
    done
    head=()
    body=$(timeout 10 head -c "$length" <&"$from")
    [ "${#body}" -le "$length" ] && [[ $body != *'<!DOCTYPE'* ]] || return 2
    last_heard=$SECONDS pinged=no
}

# ---- The messages: what each means here.

took() {  # a member, by its place in the body: it is the vcluster's
    local node host address what
    IFS='|' read -r node host address what < <(field "concat(($1)[$2]/@node,'|',($1)[$2]/@hostname,'|',($1)[$2]/@address,'|',($1)[$2]/@state)")
    is_name "$node" || return
    shown+=" $node "
    local leaving=- _h _a _s kept
    if [ -f "$state/nodes/$node" ]; then
        read -r _h _a _s kept <"$state/nodes/$node"
        [ "$_h" = "$host" ] && leaving=$kept
    fi
    put "$state/nodes/$node" "$host ${address:-?} $what $leaving"$'\n'
}
picture() {  # The whole picture: what it does not show is not so
    local total place file key shown=" "
    total=$(count "/vcluster/member")
    for ((place = 1; place <= total; place++)); do took "/vcluster/member" "$place"; done
    for file in "$state"/nodes/*; do
        [[ ! -f $file || $shown == *" ${file##*/} "* ]] || drop "$file"
    done
    for file in "$state"/requests/*; do
        key=${file##*/}
        [ -f "$file" ] && [ -n "$(get "$file")" ] && [ "$(count "/vcluster/request[@key='$key']")" = 0 ] && drop "$file"
    done
    total=$(count "/vcluster/reclaim")
    for ((place = 1; place <= total; place++)); do reclaimed "/vcluster/reclaim[$place]"; done
    write_members
    put "$state/sure" yes
}
reclaimed() {  # COD needs nodes: those of its list that were got last, at once
    local path=$1 id wanted file host address what leaving chosen="" names=""
    IFS='|' read -r id wanted < <(field "concat($path/@reclaim,'|',$path/@count)")
    for file in $(ls -t "$state/nodes"); do
        [ "$wanted" -gt 0 ] || break
        read -r host address what leaving <"$state/nodes/$file"
        [ "$(count "$path/named")" = 0 ] || [ "$(count "$path/named[@node='$host' or @node='$file']")" != 0 ] || continue
        leave "$file" "reclaim-$id"
        names+="<named node=\"$host\" within=\"0\"/>" chosen+=" $host" wanted=$((wanted - 1))
    done
    log "reclaim $id:${chosen:- nothing to give}"
    local reason=""
    [ "$wanted" -eq 0 ] || reason="no more nodes can be given"
    ask reclaim-answer "<reclaim-answer reclaim=\"$id\" reason=\"$reason\">$names</reclaim-answer>" "$id"
}
kept() {  # a numbered message: deal with it, then acknowledge it
    local node what host address leaving file key total place shown=" "
    if [ "$sequence" -gt "$seen" ]; then
        case $verb in
            grant)
                drop "$state/requests/$(field /grant/@key)"
                total=$(count /grant/member)
                for ((place = 1; place <= total; place++)); do took /grant/member "$place"; done ;;
            node-state)
                IFS='|' read -r node what < <(field "concat(/*/@node,'|',/*/@state)")
                if is_name "$node" && [ -f "$state/nodes/$node" ]; then
                    if [ "$what" = lost ]; then
                        drop "$state/nodes/$node"
                    else
                        read -r host address _ leaving <"$state/nodes/$node"
                        put "$state/nodes/$node" "$host $address $what $leaving"$'\n'
                    fi
                fi ;;
            refusal)
                key=$(field /refusal/@key)
                [ -z "$key" ] || { drop "$state/requests/$key"; quiet_until=$((SECONDS + 60)); log "refused: $(field /refusal/@reason)"; } ;;
            reclaim) reclaimed /reclaim ;;
            reclaim-over)
                if [ "$(field /reclaim-over/@state)" = cancelled ]; then
                    for file in "$state"/nodes/*; do
                        [ -f "$file" ] || continue
                        read -r host address what leaving <"$file"
                        [ "$leaving" != "reclaim-$(field /reclaim-over/@reclaim)" ] || put "$file" "$host $address $what -"$'\n'
                    done
                fi ;;
            lease) log "the lease: $(field /lease/@event)" ;;
            # of a newer COD
            *) log "what is $verb? asking for the whole picture"; drop "$state/sure" ;;
        esac
        write_members
        seen=$sequence
        put "$state/seen" "$seen"
    fi
    say ack "<ack sequence=\"$seen\"/>"
}
answered() {  # an answer, or an error, to a question of ours
    local question about code
    read -r question about <<<"${asked[$answers]}"
    unset "asked[$answers]"
    case $verb in
        request)
            case $(field /request/@state) in
                pending) put "$state/requests/$about" "$(field /request/@request)" ;;
                granted) ;;  # its grant is on the way
                *) drop "$state/requests/$about" ;;
            esac ;;
        # else it may be older than what came meanwhile
        vcluster) if [ "$seen" = "$about" ]; then picture; fi ;;
        error)
            code=$(field /error/@code)
            log "$question $about: $(field /error/@sentence) ($code)"
            case $code in
                # asked again, it may be done
                unavailable | too-many | repeated) again_at=$((SECONDS + 5)) ;;
                *)
                    [ "$question" != request-nodes ] || { drop "$state/requests/$about"; quiet_until=$((SECONDS + 60)); }
                    if [ "$question" = release-nodes ] && [ -f "$state/nodes/$about" ]; then leave "$about" -; quiet_until=$((SECONDS + 60)); fi ;;
            esac ;;
    esac
}

# ---- Each second: what is due?

waits_for() {  # is a question about that without an answer?
    local each
    for each in "${asked[@]}"; do [ "$each" != "$1" ] || return 0; done
    return 1
}
request() { ask request-nodes "<request-nodes key=\"$1\" reason=\"as many as are wanted\"><wanted count=\"1\"/></request-nodes>" "$1"; }
round() {
    local file host address what leaving have=0 going="" key wanted
    if [ ! -f "$state/sure" ]; then
        waits_for "status $seen" || ask status "<status/>" "$seen"
        return
    fi
    [ "$SECONDS" -ge "$again_at" ] || return
    # those that COD has not answered are made again, under their keys
    for file in "$state"/requests/*; do
        [ -f "$file" ] || continue
        have=$((have + 1)) key=${file##*/}
        [ -n "$(get "$file")" ] || waits_for "request-nodes $key" || request "$key"
    done
    for file in "$state"/nodes/*; do
        [ -f "$file" ] || continue
        read -r host address what leaving <"$file"
        if [ "$leaving" = - ]; then
            have=$((have + 1)) going=${file##*/}
        elif [ "$leaving" = idle ] && ! waits_for "release-nodes ${file##*/}"; then
            ask release-nodes "<release-nodes reason=\"not wanted\"><named node=\"$host\"/></release-nodes>" "${file##*/}"
        fi
    done
    wanted=$(get "$folder/wanted" || true)
    # who cannot see changes nothing
    [[ $wanted =~ ^[0-9]+$ ]] && [ "$SECONDS" -ge "$quiet_until" ] || return
    if [ "$have" -lt "$wanted" ]; then
        keys=$(($(get "$state/keys" || echo 0) + 1))
        put "$state/keys" "$keys"
        key=$(get "$state/birth")-$keys
        put "$state/requests/$key" ""
        request "$key"
    elif [ "$have" -gt "$wanted" ] && [ -n "$going" ] && [ "$have" -gt 1 ]; then
        leave "$going" idle
    fi
}

# ---- A connection's life.

converse() {  # SERVER; 0 where it was welcomed
    local welcomed=1 keepalive=30
    line="" head=() asked=() last_heard=$SECONDS pinged=no number=0
    coproc TLS { exec openssl s_client -quiet -connect "$1" -servername cod -verify_hostname cod -verify_return_error \
        -CAfile "$folder/ca.crt" -cert "$folder/vcm.crt" -key "$folder/vcm.key" 2>/dev/null 9>&-; }
    tls=$TLS_PID
    exec {from}<&"${TLS[0]}" {to}>&"${TLS[1]}"  # the shell closes its own when openssl ends
    ask hello "<hello vcluster=\"$vcluster\" vcm=\"vcm.sh 1.0\" seen=\"$seen\"/>" -
    while :; do
        hear
        case $? in
            1) ;;
            2) break ;;
            *)
                if [ "$verb" = welcome ]; then
                    welcomed=0 keepalive=$(field /welcome/@keepalive) keepalive=${keepalive%.*}
                    unset "asked[$answers]"
                    local stands
                    stands=$(field /welcome/@sequence)
                    [ "$stands" = "$seen" ] || { seen=$stands; drop "$state/sure"; put "$state/seen" "$seen"; }
                    log "connected with $(field /welcome/@server)"
                elif [ -n "$answers" ] && [ -n "${asked[$answers]:-}" ]; then
                    answered
                elif [ "$verb" = ping ]; then
                    say pong "<pong/>" "$message"
                elif [ "$verb" = bye ]; then
                    log "COD says goodbye: $(field /bye/@reason)"
                    break
                elif [ "$sequence" -gt 0 ]; then
                    kept
                elif [ "$verb" = error ]; then
                    log "COD says: $(field /error/@sentence)"
                fi  # the rest is progress, or of a newer COD
                [ "$welcomed" = 0 ] && continue ;;
        esac
        [ "$stopping" = no ] || { say bye '<bye reason="the VCM is being stopped"/>'; sleep 0.2; break; }
        [ "$welcomed" = 0 ] && round
        if [ $((SECONDS - last_heard)) -ge $((2 * keepalive)) ]; then log "COD has fallen silent"; break; fi
        if [ "$welcomed" = 0 ] && [ "$pinged" = no ] && [ $((SECONDS - last_heard)) -ge "$keepalive" ]; then
            ask ping "<ping/>" - && pinged=yes
        fi
    done
    exec {to}>&- {from}<&-
    kill "$tls" 2>/dev/null
    wait "$tls" 2>/dev/null
    return "$welcomed"
}

stopping=no again_at=0 quiet_until=0 pause=1 turn=0
trap 'stopping=yes' TERM INT
trap '' PIPE
write_members
while [ "$stopping" = no ]; do
    if converse "${servers[$((turn++ % ${#servers[@]}))]}"; then pause=1; fi
    [ "$stopping" = no ] || break
    log "no connection; again in $pause s"
    sleep "$pause" &
    wait $!
    pause=$((pause < 32 ? pause * 2 : 60))
done
