#!/bin/sh
# Makes this Mac serve models: installs the agent and the engine that lie beside this script as a launchd daemon under an
# account of their own, upgrades an older version of them, or takes them away.
#
#   sudo sh install.sh --join FILE    first time; FILE holds the token that `kubectl metalfleet join-token NAME` prints
#   sudo sh install.sh                upgrade; identity, weights and flags stay
#   sudo sh install.sh --uninstall    take it away; identity, weights and flags stay, --purge takes these too
#
# It looks at everything before it changes anything, prints what it will change, and asks. What fails half-way is undone.
# install.sh --help lists the flags. It uses nothing but what macOS brings.
set -eu
umask 022

label=dev.metalfleet.agent
limit_label=dev.metalfleet.wired-limit
account=_metalfleet
# MLX's kernels are built for this macOS; config/macos compares it with the wheel's and the engine's.
oldest=14
# What the programs take twice, for an upgrade keeps the version before.
needed_mib=1024
# The GPU may not be given what the system itself needs; the agent counts on this as well (metal/footprint).
left_mib=4096
# Longer than launchd's own: an agent that ends lets running answers finish, for the ExitTimeOut of its plist.
stop_seconds=200
# An engine that ends gives its memory back first, the larger the longer.
engine_seconds=120

# For the tests, which play a Mac below a folder, with commands of their own.
root=
if [ "${METALFLEET_TEST:-}" = 1 ]; then
  root=$METALFLEET_TEST_ROOT
else
  PATH=/usr/bin:/bin:/usr/sbin:/sbin:/usr/libexec/ApplicationFirewall
  export PATH
fi
programs=$root/usr/local/metalfleet
state=$root/usr/local/var/metalfleet
etc=$root/usr/local/etc/metalfleet
logs=$root/Library/Logs/metalfleet
daemons=$root/Library/LaunchDaemons
flags=$etc/agent.flags
before=$etc/settings.before
identity=$state/account.json
lock=$root/var/run/metalfleet-install.lock

usage() {
  cat <<'USAGE'
usage: sudo sh install.sh [flags]
  --join FILE|-          join the fleet with the token in FILE, or from standard input
  --advertise HOST[:PORT]  how gateways reach this Mac; default: its host name
  --model-root DIR       folder below which file:// sources lie; the account _metalfleet must be able to read it
  --agent-flag --X=Y     another flag for the agent, as `agent --help` lists them; may be given again
  --wired-limit-mb MIB   what the GPU may hold, now and after each start; 0 gives it back to macOS
  --keep-awake           no sleep while this Mac has power
  --allow-firewall       let the application firewall pass connections to the agent
  --yes                  do not ask
  --dry-run              say what would change, and change nothing
  --uninstall            take the daemon, the programs and the settings away; identity, weights and flags stay
  --purge                with --uninstall: identity, weights, flags, logs and the account go too
USAGE
}

say() { printf '%s\n' "$*"; }
complain() { printf 'install: %s\n' "$*" >&2; }
die() { complain "$@"; exit 1; }
misused() { complain "$@"; say "install.sh --help lists the flags" >&2; exit 2; }

# --- what was asked for -----------------------------------------------------------------------------------------------

join='' advertise='' model_root='' more_flags='' wired='' awake=no firewall=no yes=no dry=no mode=install purge=no
newline='
'

parse() {
  while [ $# -gt 0 ]; do
    case $1 in
      --join | --advertise | --model-root | --agent-flag | --wired-limit-mb)
        [ $# -ge 2 ] && [ -n "$2" ] || misused "$1 needs a value"
        take "$1" "$2"
        shift
        ;;
      --join=?* | --advertise=?* | --model-root=?* | --agent-flag=?* | --wired-limit-mb=?*) take "${1%%=*}" "${1#*=}" ;;
      --keep-awake) awake=yes ;;
      --allow-firewall) firewall=yes ;;
      --yes) yes=yes ;;
      --dry-run) dry=yes ;;
      --uninstall) mode=uninstall ;;
      --purge) purge=yes ;;
      --help | -h) usage; exit 0 ;;
      # The word is not repeated: it may be a token.
      *) misused "one of the arguments is not known" ;;
    esac
    shift
  done
  if [ "$mode" = install ]; then
    [ "$purge" = no ] || misused "--purge goes with --uninstall"
  elif [ -n "$join$advertise$model_root$more_flags$wired" ] || [ "$awake$firewall" != nono ]; then
    misused "--uninstall goes with --purge, --yes and --dry-run only"
  fi
  [ "$join" != - ] || [ "$yes$dry" != nono ] || misused "--join - reads the token from standard input, so nothing can be asked there: add --yes"
}

take() {
  case $2 in *"$newline"*) misused "$1: a value is one line" ;; esac
  case $1 in
    --join) join=$2 ;;
    --advertise) advertise=$2 ;;
    --model-root)
      case $2 in /*) ;; *) misused "--model-root $2: write a whole path, which begins with /" ;; esac
      model_root=$2
      ;;
    --agent-flag)
      check_flag "$2" || misused "--agent-flag: $flag_fault"
      more_flags=$more_flags$2$newline
      ;;
    --wired-limit-mb)
      case $2 in *[!0-9]* | ???????*) misused "--wired-limit-mb $2: want a number of MiB, 0 for the system's own" ;; esac
      wired=$2
      ;;
  esac
}

# check_flag FLAG: may it stand in agent.flags? Those of the plist may not.
check_flag() {
  flag_fault=
  case $1 in
    --state | --state=* | --state-dir | --state-dir=* | --grace | --grace=* | --engine | --engine=* | --kubeconfig | --kubeconfig=* | --name | --name=* | --mac | --mac=*)
      flag_fault="${1%%=*} is not for a daemon that this script installs: its plist or its identity says it"
      ;;
    --[a-z]*=* | --verbose) ;;
    *) flag_fault="\"$1\" is no flag of the agent; write --NAME=VALUE" ;;
  esac
  [ -z "$flag_fault" ]
}

# --- looking, before anything is changed ------------------------------------------------------------------------------

problems=0
problem() { complain "$@"; problems=$((problems + 1)); }
note() { say "note: $*"; }
number() { case $1 in '' | *[!0-9]*) return 1 ;; esac; }

check_system() {
  [ "$(uname -s)" = Darwin ] || die "this is not a Mac"
  [ "$(id -u)" -eq 0 ] || problem "run it as root: sudo sh install.sh ..."
  if [ "$(sysctl -n hw.optional.arm64 2>/dev/null || echo 0)" != 1 ]; then
    problem "this Mac has an Intel processor: models are served on Apple Silicon only"
  fi
  macos=$(sw_vers -productVersion)
  if ! number "${macos%%.*}" || [ "${macos%%.*}" -lt "$oldest" ]; then
    problem "macOS $macos is too old: MLX needs macOS $oldest; update it in System Settings > General > Software Update"
  fi
}

# check_archive: is what lies beside this script whole, and does it start here?
check_archive() {
  for f in VERSION SHA256SUMS agent engine libmlx.dylib mlx.metallib "$label.plist" "$limit_label.plist"; do
    [ -f "$here/$f" ] || { problem "$f does not lie beside install.sh: unpack the whole archive again"; return; }
  done
  version=$(cat "$here/VERSION")
  case $version in
    '' | .* | *[!A-Za-z0-9._+-]*) problem "VERSION beside install.sh names no version: unpack the archive again"; return ;;
  esac
  (cd "$here" && shasum -a 256 -c SHA256SUMS >/dev/null 2>&1) || {
    problem "files beside install.sh are damaged or missing: (cd $here && shasum -a 256 -c SHA256SUMS) names them; fetch the archive again and compare its own SHA-256 too"
    return
  }
  # Copies are tried: a browser marks what it loads, and what is marked and not known to Apple is not started.
  mkdir "$work/try"
  cp "$here/agent" "$here/engine" "$here/libmlx.dylib" "$work/try/"
  unmark "$work/try"
  for p in agent engine; do
    said=$("$work/try/$p" --version 2>&1) || said="nothing, or: $said"
    [ "$said" = "$p $version" ] || problem "$p does not start here as $version; it says $said"
  done
}

unmark() { xattr -c "$1/agent" "$1/engine" "$1/libmlx.dylib" 2>/dev/null || true; }

check_disk() {
  disk=$root/usr/local
  [ -d "$disk" ] || disk=/
  free_kib=$(df -k "$disk" | awk 'NR == 2 {print $4}')
  number "$free_kib" || { problem "df does not say how much room there is"; return; }
  free_mib=$((free_kib / 1024))
  if [ "$free_mib" -lt "$needed_mib" ]; then
    problem "$free_mib MiB are free on the disk, the programs need $needed_mib"
  else
    say "disk: $((free_mib / 1024)) GiB free; weights that are downloaded go to ${state#"$root"}"
  fi
}

# check_memory says what engines may use: the smaller of the GPU's limit and what the system is left.
check_memory() {
  memory_mib=$(sysctl -n hw.memsize)
  number "$memory_mib" || { problem "sysctl does not say how much memory there is"; return; }
  memory_mib=$((memory_mib / 1048576))
  wired_now=$(sysctl -n iogpu.wired_limit_mb 2>/dev/null || echo 0)
  number "$wired_now" || wired_now=0
  share=$wired_now
  if [ "$share" -eq 0 ]; then # Metal's own, as agent/probe has it
    # shellcheck disable=SC2017  # in the agent's order
    if [ "$memory_mib" -le 36864 ]; then share=$((memory_mib / 3 * 2)); else share=$((memory_mib / 4 * 3)); fi
    say "memory: $memory_mib MiB, of which the GPU may hold about $share (macOS's own limit)"
  else
    say "memory: $memory_mib MiB, of which the GPU may hold $share (iogpu.wired_limit_mb is set)"
  fi
  most=$((memory_mib - 6144))
  [ "$memory_mib" -ge 24576 ] || most=$((memory_mib - left_mib))
  if [ -n "$wired" ] && [ "$wired" -gt $((memory_mib - left_mib)) ]; then
    problem "--wired-limit-mb $wired leaves macOS less than $left_mib MiB of $memory_mib: it would freeze; want $most at most"
  elif [ -z "$wired" ] && [ "$share" -lt "$most" ]; then
    note "on a Mac that does nothing else, --wired-limit-mb $most lets engines use $((most - share)) MiB more; more than that the agent does not use"
  elif [ "$share" -gt $((memory_mib - left_mib)) ]; then
    note "iogpu.wired_limit_mb leaves macOS less than $left_mib MiB; --wired-limit-mb $most is safer"
  fi
}

check_sleep() {
  sleep_now=$(pmset -g custom | awk '/Power:/ {ac = /^AC/} ac && $1 == "sleep" {print $2; exit}')
  number "$sleep_now" || { note "pmset does not say when this Mac sleeps; a Mac that sleeps leaves the fleet"; sleep_now=; return; }
  if [ "$sleep_now" -eq 0 ]; then
    say "sleep: never, while it has power"
  elif [ "$awake" = no ]; then
    note "this Mac sleeps after $sleep_now minutes and leaves the fleet then: its models are loaded elsewhere. --keep-awake turns that off"
  fi
  if pmset -g batt | grep -q InternalBattery; then
    note "this Mac has a battery: it sleeps without power, and with its lid closed, whatever is set"
  fi
}

check_network() {
  if [ "${macos%%.*}" -ge 15 ] 2>/dev/null; then
    say "Local Network privacy: macOS $macos asks users about apps that speak to their network; daemons of launchd are not asked about (Apple's TN3179), so there is nothing to allow"
    [ "$macos" != 15.0 ] && [ "${macos#15.0.}" = "$macos" ] || note "macOS 15.0 had faults there that 15.1 corrects: update it"
  fi
  firewall_on=no
  case $(socketfilterfw --getglobalstate 2>/dev/null || true) in *"State = 1"* | *"State = 2"*) firewall_on=yes ;; esac
  if [ "$firewall_on" = no ]; then
    say "firewall: off"
  elif [ "$firewall" = no ] && ! remembered firewall; then
    note "the application firewall is on, and asks nobody about a daemon: gateways may not reach this Mac. --allow-firewall lets it pass; where a profile rules the firewall, change it there"
  fi
  case $(socketfilterfw --getblockall 2>/dev/null || true) in
    *"block all"*"enabled"* | *"Block all"*"ENABLED"*) note "the firewall blocks all incoming connections: no gateway reaches this Mac until that is off" ;;
  esac
  case $(fdesetup status 2>/dev/null || true) in
    *"FileVault is On"*) note "FileVault is on: after a restart nothing runs here until somebody unlocks the disk" ;;
  esac
}

# check_join: this Mac needs an identity, and a token is not for a command line.
check_join() {
  if [ -z "$join" ]; then
    [ -f "$identity" ] || problem "this Mac has not joined: make a token with \`kubectl metalfleet join-token NAME\`, then add --join FILE, or --join - to give it on standard input"
  elif [ "$join" = - ]; then
    cat >"$work/token"
    [ -s "$work/token" ] || problem "--join -: there was no token on standard input"
  elif [ ! -f "$join" ]; then
    # What was given is not repeated: it may be the token itself.
    problem "--join: there is no such file. A token itself does not go there, every user would see it in the list of processes: write it to a file, or give --join - and the token on standard input. If that was one, it is known now: make another"
  else
    cat "$join" >"$work/token"
  fi
}

# check_flags makes the flags file that the daemon will have.
check_flags() {
  if [ -f "$flags" ]; then cat "$flags"; fi >"$work/flags"
  [ -z "$advertise" ] || set_flag "--advertise=$advertise"
  [ -z "$model_root" ] || set_flag "--model-root=$model_root"
  printf '%s' "$more_flags" >"$work/more"
  while IFS= read -r line; do set_flag "$line"; done <"$work/more"
  while IFS= read -r line; do
    case $line in '' | '#'*) continue ;; esac
    check_flag "$line" || problem "${flags#"$root"}: $flag_fault"
  done <"$work/flags"
  dir=$(sed -n 's/^--model-root=//p' "$work/flags" | tail -n 1)
  [ -z "$dir" ] || [ -d "$root$dir" ] || problem "--model-root $dir: there is no such folder"
}

# set_flag FLAG puts it in place of the one of that name.
set_flag() {
  awk -v name="${1%%=*}" '{key = $0; sub(/=.*/, "", key)} key != name' "$work/flags" >"$work/flags.new"
  printf '%s\n' "$1" >>"$work/flags.new"
  cat "$work/flags.new" >"$work/flags"
}

# --- what is there, and what is to change -----------------------------------------------------------------------------

has_record() { dscl . -read "$1" >/dev/null 2>&1; }
has_user() { dscl . -read "/Users/$account" UniqueID >/dev/null 2>&1; }
has_group() { dscl . -read "/Groups/$account" PrimaryGroupID >/dev/null 2>&1; }
loaded() { launchctl print "system/$1" >/dev/null 2>&1; }
agent_pid() { launchctl print "system/$label" 2>/dev/null | awk '$1 == "pid" && $2 == "=" {print $3; exit}'; }
remembered() { [ -f "$before" ] && grep -q "^$1=" "$before"; }
current() { if [ -L "$programs/current" ]; then basename "$(readlink "$programs/current")"; fi; }
engines() { ps -A -o user= -o pid= -o comm= | awk -v u="$account" '$1 == u && $3 ~ /\/engine$/ {print $2}'; }

# render makes the daemon's plist: the archive's, with the flags of agent.flags as further arguments.
render() {
  awk -v flags="$work/flags" '
    /<!-- agent.flags -->/ {
      while ((getline line < flags) > 0) {
        if (line == "" || line ~ /^#/) continue
        gsub(/&/, "\\&amp;", line); gsub(/</, "\\&lt;", line); gsub(/>/, "\\&gt;", line)
        print "    <string>" line "</string>"
      }
      next
    }
    {print}' "$here/$label.plist" >"$work/agent.plist"
  plutil -lint "$work/agent.plist" >/dev/null || die "the plist that was made of agent.flags is none: ${flags#"$root"} has a line that cannot be written there"
}

todo=
will() { todo="$todo $1"; shift; say "  $*" >>"$work/plan"; }

# plan_install lists the steps in the order in which they are taken. Each has do_STEP and undo_STEP.
plan_install() {
  if ! has_user || ! has_group; then will account "make the account and the group $account, which nobody logs in as"; fi
  for dir in "$state" "$etc" "$logs"; do
    [ -d "$dir" ] || { will folders "make ${state#"$root"} (identity, weights), ${etc#"$root"} (flags) and ${logs#"$root"} (log)"; break; }
  done
  if ! cmp -s "$here/SHA256SUMS" "$programs/versions/$version/SHA256SUMS"; then
    will programs "put $version into ${programs#"$root"}/versions/$version"
  fi
  if ! cmp -s "$work/flags" "$flags"; then
    given=$(sed '/^$/d; /^#/d' "$work/flags" | tr '\n' ' ')
    will flags "write the agent's flags into ${flags#"$root"}: ${given:-none}"
  fi
  plan_settings
  restart=no
  if [ "$(current)" != "$version" ] || ! cmp -s "$work/agent.plist" "$daemons/$label.plist" || ! loaded "$label"; then restart=yes; fi
  case $todo in *programs* | *account*) restart=yes ;; esac
  [ -z "$join" ] || restart=yes
  if [ "$restart" = yes ]; then
    ! loaded "$label" || will stop "end the agent that runs; running answers finish first, its engines go on and are taken over"
    [ "$(current)" = "$version" ] || will current "let ${programs#"$root"}/current be $version$(old=$(current); [ -z "$old" ] || printf ' (it is %s)' "$old")"
    cmp -s "$work/agent.plist" "$daemons/$label.plist" || will daemon "write ${daemons#"$root"}/$label.plist: the daemon, as $account, at each start of this Mac"
  fi
  plan_firewall
  [ -z "$join" ] || will join "join the fleet with the token; the key of this Mac is made here and stays here"
  [ "$restart" = no ] || will start "start the daemon, and see that it keeps running"
}

plan_settings() {
  if [ -n "$wired" ]; then
    sed "s/@MIB@/$wired/" "$here/$limit_label.plist" >"$work/limit.plist"
    if [ "$wired" -eq 0 ]; then
      [ "$wired_now" -eq 0 ] && [ ! -f "$daemons/$limit_label.plist" ] || will wired "give the GPU's limit back to macOS (iogpu.wired_limit_mb is $wired_now)"
    elif [ "$wired" -ne "$wired_now" ] || ! cmp -s "$work/limit.plist" "$daemons/$limit_label.plist"; then
      will wired "set iogpu.wired_limit_mb from $wired_now to $wired, now and at each start (${daemons#"$root"}/$limit_label.plist)"
    fi
  fi
  if [ "$awake" = yes ] && [ "${sleep_now:-1}" -ne 0 ]; then
    will awake "turn sleep off while this Mac has power (pmset -c sleep 0; it is ${sleep_now:-not known})"
  fi
}

plan_firewall() {
  if [ "$firewall" = yes ] || remembered firewall; then
    case $todo in
      *current*) will firewall "let the application firewall pass connections to the agent of $version" ;;
      *) remembered firewall || will firewall "let the application firewall pass connections to the agent of $version" ;;
    esac
  fi
}

# --- the steps, and how each is undone --------------------------------------------------------------------------------

# remember NAME VALUE keeps what a setting was, for --uninstall; the first word counts.
remember() { remembered "$1" || printf '%s=%s\n' "$1" "$2" >>"$before"; }
forget() {
  [ -f "$before" ] || return 0
  sed "/^$1=/d" "$before" >"$work/before"
  if [ -s "$work/before" ]; then cat "$work/before" >"$before"; else rm -f "$before"; fi
}
was() { if [ -f "$before" ]; then sed -n "s/^$1=//p" "$before"; fi; }

free_id() {
  {
    dscl . -list /Users UniqueID
    dscl . -list /Groups PrimaryGroupID
  } | awk '{taken[$NF] = 1} END {for (i = 399; i >= 300; i--) if (!(i in taken)) {print i; exit}}'
}

do_account() {
  made_group=no made_user=no
  number=$(free_id)
  [ -n "$number" ] || die "every id from 300 to 399 is taken: there is none for the account $account"
  if ! has_group; then
    made_group=yes
    dscl . -create "/Groups/$account"
    dscl . -create "/Groups/$account" PrimaryGroupID "$number"
    dscl . -create "/Groups/$account" RealName "metalfleet agent"
    dscl . -create "/Groups/$account" Password '*'
  fi
  has_user && return
  made_user=yes
  dscl . -create "/Users/$account"
  dscl . -create "/Users/$account" UniqueID "$number"
  dscl . -create "/Users/$account" PrimaryGroupID "$(dscl . -read "/Groups/$account" PrimaryGroupID | awk '{print $2}')"
  dscl . -create "/Users/$account" RealName "metalfleet agent"
  dscl . -create "/Users/$account" NFSHomeDirectory /var/empty
  dscl . -create "/Users/$account" UserShell /usr/bin/false
  dscl . -create "/Users/$account" Password '*'
  dscl . -create "/Users/$account" IsHidden 1
}
undo_account() {
  [ ! -f "$identity" ] || return 0 # it is this account's
  if [ "$made_user" = yes ] && has_record "/Users/$account"; then dscl . -delete "/Users/$account"; fi
  if [ "$made_group" = yes ] && has_record "/Groups/$account"; then dscl . -delete "/Groups/$account"; fi
}

do_folders() {
  made_folders=
  for dir in "$root/usr/local/etc" "$etc" "$root/usr/local/var" "$state" "$logs"; do
    [ -d "$dir" ] || made_folders="$dir$newline$made_folders"
    mkdir -p "$dir"
  done
  chown "root:wheel" "$etc"
  chown "$account:$account" "$state"
  : >>"$logs/agent.log" # launchd would make it with the daemon's umask, for nobody else to read
  chown "$account:admin" "$logs" "$logs/agent.log"
  chmod 755 "$etc"
  chmod 700 "$state"
  chmod 750 "$logs"
  chmod 640 "$logs/agent.log"
}
undo_folders() {
  # A state folder with an identity in it stays: the token that made it is used up.
  printf '%s' "$made_folders" | while IFS= read -r dir; do
    case $dir in
      "$state") [ -f "$identity" ] || rm -rf "$dir" ;;
      */metalfleet) rm -rf "$dir" ;;
      *) rmdir "$dir" 2>/dev/null || true ;;
    esac
  done
}

do_programs() {
  to=$programs/versions
  mkdir -p "$to"
  rm -rf "$to/.new" "$to/.old"
  mkdir "$to/.new"
  awk '{print $2}' "$here/SHA256SUMS" >"$work/files"
  while IFS= read -r f; do cp "$here/${f#./}" "$to/.new/"; done <"$work/files"
  cp "$here/SHA256SUMS" "$to/.new/"
  chmod 755 "$to/.new" "$to/.new/agent" "$to/.new/engine" "$to/.new/install.sh"
  chown -R root:wheel "$to/.new"
  unmark "$to/.new"
  (cd "$to/.new" && shasum -a 256 -c SHA256SUMS >/dev/null) || die "what was copied into ${to#"$root"} differs from the archive: is the disk full or failing?"
  [ ! -d "$to/$version" ] || mv "$to/$version" "$to/.old"
  mv "$to/.new" "$to/$version"
}
undo_programs() {
  rm -rf "$programs/versions/.new"
  if [ -d "$programs/versions/.old" ]; then
    rm -rf "$programs/versions/$version"
    mv "$programs/versions/.old" "$programs/versions/$version"
  elif [ "$(current)" != "$version" ]; then
    rm -rf "$programs/versions/$version"
  fi
  rmdir "$programs/versions" "$programs" 2>/dev/null || true
}

do_flags() {
  keep "$flags"
  cat "$work/flags" >"$flags"
  chmod 644 "$flags"
}
undo_flags() { put_back "$flags"; }

# keep FILE: as it is, for put_back.
keep() { if [ -f "$1" ]; then cp -p "$1" "$work/kept-$(basename "$1")"; fi; }
put_back() {
  if [ -f "$work/kept-$(basename "$1")" ]; then cp -p "$work/kept-$(basename "$1")" "$1"; else rm -f "$1"; fi
}

do_wired() {
  keep "$daemons/$limit_label.plist"
  ! remembered wired && wired_first=yes || wired_first=no
  remember wired "$wired_now"
  sysctl "iogpu.wired_limit_mb=$wired" >/dev/null
  if [ "$wired" -eq 0 ]; then
    rm -f "$daemons/$limit_label.plist"
    forget wired
  else
    cat "$work/limit.plist" >"$daemons/$limit_label.plist"
    chown root:wheel "$daemons/$limit_label.plist"
    chmod 644 "$daemons/$limit_label.plist"
  fi
}
undo_wired() {
  sysctl "iogpu.wired_limit_mb=$wired_now" >/dev/null
  put_back "$daemons/$limit_label.plist"
  if [ "$wired_first" = yes ]; then forget wired; fi
}

do_awake() {
  ! remembered sleep && awake_first=yes || awake_first=no
  remember sleep "${sleep_now:-1}"
  pmset -c sleep 0
}
undo_awake() {
  pmset -c sleep "${sleep_now:-1}"
  if [ "$awake_first" = yes ]; then forget sleep; fi
}

do_stop() { bootout "$label"; }
undo_stop() { loaded "$label" || launchctl bootstrap system "$daemons/$label.plist"; }

# bootout LABEL ends a daemon and waits until launchd let go of it: a bootstrap before that fails.
bootout() {
  launchctl bootout "system/$1" 2>/dev/null || true
  left=$stop_seconds
  while loaded "$1"; do
    [ "$left" -gt 0 ] || { complain "$1 does not end: launchctl print system/$1 says why"; return 1; }
    sleep 1
    left=$((left - 1))
  done
}

do_current() {
  old_version=$(current)
  ln -sfn "versions/$version" "$programs/current"
}
undo_current() {
  if [ -n "$old_version" ]; then ln -sfn "versions/$old_version" "$programs/current"; else rm -f "$programs/current"; fi
}

do_daemon() {
  keep "$daemons/$label.plist"
  cat "$work/agent.plist" >"$daemons/$label.plist"
  chown root:wheel "$daemons/$label.plist"
  chmod 644 "$daemons/$label.plist"
}
undo_daemon() { put_back "$daemons/$label.plist"; }

do_firewall() {
  ! remembered firewall && firewall_first=yes || firewall_first=no
  remember firewall 1
  socketfilterfw --add "$programs/versions/$version/agent" >/dev/null
  socketfilterfw --unblockapp "$programs/versions/$version/agent" >/dev/null
}
undo_firewall() {
  socketfilterfw --remove "$programs/versions/$version/agent" >/dev/null 2>&1 || true
  if [ "$firewall_first" = yes ]; then forget firewall; fi
}

do_join() {
  # shellcheck disable=SC2024  # the token is read by root, for the account's program
  (cd / && sudo -u "$account" "$programs/versions/$version/agent" join --token-file - --state "$state") <"$work/token"
  rm -f "$work/token"
}
undo_join() { [ ! -f "$identity" ] || complain "this Mac has joined, and stays so: run install.sh again without --join"; }

do_start() {
  launchctl enable "system/$label"
  launchctl bootstrap system "$daemons/$label.plist"
  # An agent that cannot run ends at once, and launchd tries again after ten seconds: one pid for longer is what counts.
  left=30 pid='' since=$left
  while [ "$left" -gt 0 ]; do
    sleep 1
    left=$((left - 1))
    now=$(agent_pid)
    [ "$now" = "$pid" ] || { pid=$now since=$left; }
    if [ -n "$pid" ] && [ $((since - left)) -ge 5 ]; then return; fi
  done
  complain "the agent does not keep running; its last words, from ${logs#"$root"}/agent.log:"
  tail -n 5 "$logs/agent.log" >&2 2>/dev/null || true
  return 1
}
undo_start() { bootout "$label"; }

# --- running the plan -------------------------------------------------------------------------------------------------

undo=
locked=no
# finish ends every way out. What a failed install began is taken back, the last step first, the step that failed too.
finish() {
  status=$?
  trap - EXIT
  trap '' INT TERM HUP
  set +eu
  if [ "$status" -ne 0 ] && [ -n "$undo" ]; then
    complain "failed; what was changed is taken back"
    for step in $undo; do "undo_$step" || complain "could not take back: $step"; done
  fi
  [ "$locked" = no ] || rmdir "$lock"
  rm -rf "$work"
  exit "$status"
}

# ask prints the plan and ends the script unless it is agreed to.
ask() {
  if [ ! -s "$work/plan" ]; then
    say "$1"
    exit 0
  fi
  say "will change:"
  cat "$work/plan"
  [ "$dry" = no ] || { say "dry run: nothing was changed"; exit 0; }
  if [ "$yes" = no ]; then
    printf 'go on? [y/N] '
    answer=
    read -r answer || true
    case $answer in y | Y | yes) ;; *) die "nothing was changed" ;; esac
  fi
  mkdir -p "$root/var/run"
  mkdir "$lock" 2>/dev/null || die "another install.sh runs; if none does, remove ${lock#"$root"}"
  locked=yes
}

install() {
  say "metalfleet on macOS $(sw_vers -productVersion)"
  check_system
  check_archive
  check_disk
  check_memory
  check_sleep
  check_network
  check_flags
  check_join
  [ "$problems" -eq 0 ] || die "nothing was changed"
  render
  plan_install
  ask "metalfleet $version is installed and runs as asked: nothing to change"
  for step in $todo; do
    undo="$step $undo"
    "do_$step"
  done
  undo=
  tidy
  say "metalfleet $version runs; its log is ${logs#"$root"}/agent.log. On the cluster's side: kubectl get mac"
}

# tidy removes what no longer serves: versions but for this one and the one before.
tidy() {
  case $todo in *programs*) ;; *) return 0 ;; esac
  rm -rf "$programs/versions/.old"
  for dir in "$programs"/versions/*; do
    case ${dir##*/} in "$version" | "${old_version:-$version}") ;; *)
      ! remembered firewall || socketfilterfw --remove "$dir/agent" >/dev/null 2>&1 || true
      rm -rf "$dir"
      ;;
    esac
  done
}

# --- taking it away ---------------------------------------------------------------------------------------------------

plan_uninstall() {
  count=$(engines | wc -l | tr -d ' ')
  ! loaded "$label" || will away_agent "end the agent; running answers finish first"
  [ "$count" -eq 0 ] || will away_engines "end the engines that run here ($count) and give their memory back: drain this Mac first with \`kubectl metalfleet drain NAME\` and no request is lost"
  if [ -f "$daemons/$label.plist" ]; then will away_daemon "remove ${daemons#"$root"}/$label.plist"; fi
  if remembered firewall; then will away_firewall "remove the agent from the application firewall's list"; fi
  if remembered wired || [ -f "$daemons/$limit_label.plist" ]; then will away_wired "set iogpu.wired_limit_mb back to what it was ($(was wired))"; fi
  if remembered sleep; then will away_awake "set sleep back to what it was ($(was sleep) minutes)"; fi
  if [ -d "$programs" ]; then will away_programs "remove ${programs#"$root"}"; fi
  [ "$purge" = yes ] || return 0
  if [ -d "$state" ] || [ -d "$etc" ] || [ -d "$logs" ]; then
    will away_folders "remove ${state#"$root"} (identity, and all downloaded weights), ${etc#"$root"} and ${logs#"$root"}"
  fi
  if has_user || has_group; then will away_account "remove the account and the group $account"; fi
}

do_away_agent() { bootout "$label"; }

# Killed in the middle of its work, a process can leave memory of the GPU behind that nobody owns: ask first, and wait.
do_away_engines() {
  for signal in TERM KILL; do
    left=$engine_seconds
    for pid in $(engines); do kill "-$signal" "$pid" 2>/dev/null || true; done
    while [ -n "$(engines)" ] && [ "$left" -gt 0 ]; do
      sleep 1
      left=$((left - 1))
    done
  done
  [ -z "$(engines)" ] || die "engines of $account do not end: restart this Mac, then run this again"
}
do_away_daemon() { rm -f "$daemons/$label.plist"; }
do_away_firewall() {
  for dir in "$programs"/versions/*; do
    socketfilterfw --remove "$dir/agent" >/dev/null 2>&1 || true
  done
  forget firewall
}
do_away_wired() {
  rm -f "$daemons/$limit_label.plist"
  value=$(was wired)
  sysctl "iogpu.wired_limit_mb=${value:-0}" >/dev/null
  forget wired
}
do_away_awake() {
  pmset -c sleep "$(was sleep)"
  forget sleep
}
do_away_programs() { rm -rf "$programs"; }
do_away_folders() { rm -rf "$state" "$etc" "$logs"; }
do_away_account() {
  ! has_user || dscl . -delete "/Users/$account"
  ! has_group || dscl . -delete "/Groups/$account"
}

uninstall() {
  [ "$(uname -s)" = Darwin ] || die "this is not a Mac"
  [ "$(id -u)" -eq 0 ] || die "run it as root: sudo sh install.sh --uninstall"
  plan_uninstall
  [ "$purge" = yes ] || [ ! -d "$state" ] || say "stays: ${state#"$root"} (identity, weights), ${etc#"$root"}, ${logs#"$root"}, the account $account; --purge takes them too"
  ask "metalfleet is not installed here: nothing to take away"
  for step in $todo; do "do_$step"; done
  say "metalfleet is gone from this Mac. On the cluster's side: kubectl delete mac NAME"
}

parse "$@"
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/metalfleet.XXXXXX")
chmod 700 "$work"
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
: >"$work/plan"
"$mode"
