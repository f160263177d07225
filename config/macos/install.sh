#!/bin/sh
# Makes this Mac serve models: installs the agent and the engine from this script's folder as a launchd daemon under their
# own account, upgrades an older version, or uninstalls them.
#
#   sudo sh install.sh --join FILE    first time; FILE holds the token that `kubectl metalfleet join-token NAME` prints
#   sudo sh install.sh                upgrade; keeps identity, weights and flags
#   sudo sh install.sh --uninstall    uninstall; keeps identity, weights and flags unless --purge is given
#
# It checks everything before it changes anything, prints the changes, and asks for confirmation. If a step fails, it undoes
# all changes. install.sh --help lists the flags. It uses only tools that come with macOS.
set -eu
umask 022

label=dev.metalfleet.agent
limit_label=dev.metalfleet.wired-limit
account=_metalfleet
# MLX's kernels are built for this macOS; config/macos compares it with the wheel's and the engine's.
oldest=14
# Twice the size of the programs, because an upgrade keeps the previous version.
needed_mib=1024
# Memory reserved for the system, which the GPU must not use; the agent assumes the same (metal/footprint).
left_mib=4096
# Longer than launchd's default: a stopping agent lets running requests finish, for the ExitTimeOut of its plist.
stop_seconds=200
# A stopping engine frees its memory first, which takes longer for large models.
engine_seconds=120

# For the tests, which simulate a Mac under a root folder with their own commands.
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
  --advertise HOST[:PORT]  address at which gateways reach this Mac; default: its host name
  --model-root DIR       folder that file:// sources are relative to; the account _metalfleet must be able to read it
  --agent-flag --X=Y     another flag for the agent (see `agent --help`); may be repeated
  --wired-limit-mb MIB   memory limit of the GPU, set now and at each start; 0 restores the default of macOS
  --keep-awake           disable sleep while this Mac has power
  --allow-firewall       allow connections to the agent in the application firewall
  --yes                  do not ask for confirmation
  --dry-run              print the changes without making them
  --uninstall            remove the daemon, the programs and the settings; keep identity, weights and flags
  --purge                with --uninstall: also remove identity, weights, flags, logs and the account
USAGE
}

say() { printf '%s\n' "$*"; }
complain() { printf 'install: %s\n' "$*" >&2; }
die() { complain "$@"; exit 1; }
misused() { complain "$@"; say "install.sh --help lists the flags" >&2; exit 2; }

# --- arguments --------------------------------------------------------------------------------------------------------

join='' advertise='' model_root='' more_flags='' wired='' awake=no firewall=no yes=no dry=no mode=install purge=no
newline='
'

parse() {
  while [ $# -gt 0 ]; do
    case $1 in
      --join | --advertise | --model-root | --agent-flag | --wired-limit-mb)
        [ $# -ge 2 ] && [ -n "$2" ] || misused "$1 requires a value"
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
      # The argument is not printed: it may be a token.
      *) misused "unknown argument" ;;
    esac
    shift
  done
  if [ "$mode" = install ]; then
    [ "$purge" = no ] || misused "--purge requires --uninstall"
  elif [ -n "$join$advertise$model_root$more_flags$wired" ] || [ "$awake$firewall" != nono ]; then
    misused "--uninstall can be combined only with --purge, --yes and --dry-run"
  fi
  [ "$join" != - ] || [ "$yes$dry" != nono ] || misused "--join - reads the token from standard input, so it cannot ask for confirmation: add --yes"
}

take() {
  case $2 in *"$newline"*) misused "$1: the value must be a single line" ;; esac
  case $1 in
    --join) join=$2 ;;
    --advertise) advertise=$2 ;;
    --model-root)
      case $2 in /*) ;; *) misused "--model-root $2: use an absolute path, which begins with /" ;; esac
      model_root=$2
      ;;
    --agent-flag)
      check_flag "$2" || misused "--agent-flag: $flag_fault"
      more_flags=$more_flags$2$newline
      ;;
    --wired-limit-mb)
      case $2 in *[!0-9]* | ???????*) misused "--wired-limit-mb $2: want a number of MiB, or 0 for the default of macOS" ;; esac
      wired=$2
      ;;
  esac
}

# check_flag FLAG: is it allowed in agent.flags? Flags of the plist are not.
check_flag() {
  flag_fault=
  case $1 in
    --state | --state=* | --state-dir | --state-dir=* | --grace | --grace=* | --engine | --engine=* | --kubeconfig | --kubeconfig=* | --name | --name=* | --mac | --mac=*)
      flag_fault="${1%%=*} cannot be set here: the plist or the identity of the daemon determines it"
      ;;
    --[a-z]*=* | --verbose) ;;
    *) flag_fault="\"$1\" is not a flag of the agent; write --NAME=VALUE" ;;
  esac
  [ -z "$flag_fault" ]
}

# --- checks, before anything is changed -------------------------------------------------------------------------------

problems=0
problem() { complain "$@"; problems=$((problems + 1)); }
note() { say "note: $*"; }
number() { case $1 in '' | *[!0-9]*) return 1 ;; esac; }

check_system() {
  [ "$(uname -s)" = Darwin ] || die "this is not a Mac"
  [ "$(id -u)" -eq 0 ] || problem "run it as root: sudo sh install.sh ..."
  if [ "$(sysctl -n hw.optional.arm64 2>/dev/null || echo 0)" != 1 ]; then
    problem "this Mac has an Intel processor: metalfleet requires Apple Silicon"
  fi
  macos=$(sw_vers -productVersion)
  if ! number "${macos%%.*}" || [ "${macos%%.*}" -lt "$oldest" ]; then
    problem "macOS $macos is too old: MLX needs macOS $oldest; update it in System Settings > General > Software Update"
  fi
}

# check_archive: is the archive complete, and do its programs start here?
check_archive() {
  for f in VERSION SHA256SUMS agent engine libmlx.dylib mlx.metallib "$label.plist" "$limit_label.plist"; do
    [ -f "$here/$f" ] || { problem "$f is not in the folder of install.sh: unpack the whole archive again"; return; }
  done
  version=$(cat "$here/VERSION")
  case $version in
    '' | .* | *[!A-Za-z0-9._+-]*) problem "the file VERSION does not contain a version: unpack the archive again"; return ;;
  esac
  (cd "$here" && shasum -a 256 -c SHA256SUMS >/dev/null 2>&1) || {
    problem "files of the archive are damaged or missing: (cd $here && shasum -a 256 -c SHA256SUMS) lists them; download the archive again and verify its SHA-256 too"
    return
  }
  # Run copies: browsers mark downloads as quarantined, and macOS does not start quarantined programs that Apple does not know.
  mkdir "$work/try"
  cp "$here/agent" "$here/engine" "$here/libmlx.dylib" "$work/try/"
  unmark "$work/try"
  for p in agent engine; do
    said=$("$work/try/$p" --version 2>&1) || said="an error: $said"
    [ "$said" = "$p $version" ] || problem "$p --version does not print $version on this Mac, but $said"
  done
}

unmark() { xattr -c "$1/agent" "$1/engine" "$1/libmlx.dylib" 2>/dev/null || true; }

check_disk() {
  disk=$root/usr/local
  [ -d "$disk" ] || disk=/
  free_kib=$(df -k "$disk" | awk 'NR == 2 {print $4}')
  number "$free_kib" || { problem "cannot determine the free disk space with df"; return; }
  free_mib=$((free_kib / 1024))
  if [ "$free_mib" -lt "$needed_mib" ]; then
    problem "the disk has $free_mib MiB free, but the programs need $needed_mib"
  else
    say "disk: $((free_mib / 1024)) GiB free; the agent downloads weights to ${state#"$root"}"
  fi
}

# check_memory prints how much memory engines may use: the smaller of the GPU's limit and the memory left after the system's.
check_memory() {
  memory_mib=$(sysctl -n hw.memsize)
  number "$memory_mib" || { problem "cannot determine the memory size with sysctl"; return; }
  memory_mib=$((memory_mib / 1048576))
  wired_now=$(sysctl -n iogpu.wired_limit_mb 2>/dev/null || echo 0)
  number "$wired_now" || wired_now=0
  share=$wired_now
  if [ "$share" -eq 0 ]; then # Metal's default, as in agent/probe
    # shellcheck disable=SC2017  # in the agent's order
    if [ "$memory_mib" -le 36864 ]; then share=$((memory_mib / 3 * 2)); else share=$((memory_mib / 4 * 3)); fi
    say "memory: $memory_mib MiB, of which the GPU may use about $share (the default of macOS)"
  else
    say "memory: $memory_mib MiB, of which the GPU may use $share (iogpu.wired_limit_mb is set)"
  fi
  most=$((memory_mib - 6144))
  [ "$memory_mib" -ge 24576 ] || most=$((memory_mib - left_mib))
  if [ -n "$wired" ] && [ "$wired" -gt $((memory_mib - left_mib)) ]; then
    problem "--wired-limit-mb $wired leaves macOS less than $left_mib MiB of $memory_mib: it would freeze; want at most $most"
  elif [ -z "$wired" ] && [ "$share" -lt "$most" ]; then
    note "on a dedicated Mac, --wired-limit-mb $most lets engines use $((most - share)) MiB more, which is the most that the agent uses"
  elif [ "$share" -gt $((memory_mib - left_mib)) ]; then
    note "iogpu.wired_limit_mb leaves macOS less than $left_mib MiB; --wired-limit-mb $most is safer"
  fi
}

check_sleep() {
  sleep_now=$(pmset -g custom | awk '/Power:/ {ac = /^AC/} ac && $1 == "sleep" {print $2; exit}')
  number "$sleep_now" || { note "cannot determine with pmset when this Mac sleeps; a Mac that sleeps leaves the fleet"; sleep_now=; return; }
  if [ "$sleep_now" -eq 0 ]; then
    say "sleep: never, while it has power"
  elif [ "$awake" = no ]; then
    note "this Mac sleeps after $sleep_now minutes and then leaves the fleet: its models are loaded on other Macs. --keep-awake disables sleep"
  fi
  if pmset -g batt | grep -q InternalBattery; then
    note "this Mac has a battery: regardless of the settings, it sleeps without power and with its lid closed"
  fi
}

check_network() {
  if [ "${macos%%.*}" -ge 15 ] 2>/dev/null; then
    say "Local Network privacy: macOS $macos asks users before apps access the local network, but not for launchd daemons (Apple's TN3179), so there is nothing to allow"
    [ "$macos" != 15.0 ] && [ "${macos#15.0.}" = "$macos" ] || note "macOS 15.0 has bugs in this feature that 15.1 fixes: update macOS"
  fi
  firewall_on=no
  case $(socketfilterfw --getglobalstate 2>/dev/null || true) in *"State = 1"* | *"State = 2"*) firewall_on=yes ;; esac
  if [ "$firewall_on" = no ]; then
    say "firewall: off"
  elif [ "$firewall" = no ] && ! remembered firewall; then
    note "the application firewall is on and does not ask about daemons: gateways may not reach this Mac. --allow-firewall allows connections to the agent; if a profile manages the firewall, change it there"
  fi
  case $(socketfilterfw --getblockall 2>/dev/null || true) in
    *"block all"*"enabled"* | *"Block all"*"ENABLED"*) note "the firewall blocks all incoming connections: gateways cannot reach this Mac until you turn this off" ;;
  esac
  case $(fdesetup status 2>/dev/null || true) in
    *"FileVault is On"*) note "FileVault is on: after a restart the agent does not run until a user unlocks the disk" ;;
  esac
}

# check_join: this Mac needs an identity, and a token must not be on the command line.
check_join() {
  if [ -z "$join" ]; then
    [ -f "$identity" ] || problem "this Mac has not joined: create a token with \`kubectl metalfleet join-token NAME\`, then add --join FILE, or --join - to pass it on standard input"
  elif [ "$join" = - ]; then
    cat >"$work/token"
    [ -s "$work/token" ] || problem "--join -: there is no token on standard input"
  elif [ ! -f "$join" ]; then
    # The value is not printed: it may be the token itself.
    problem "--join: there is no such file. Do not pass the token itself, because every user can see it in the process list: write it to a file, or use --join - and pass it on standard input. If the value was a token, it is exposed: create another one"
  else
    cat "$join" >"$work/token"
  fi
}

# check_flags creates the new flags file of the daemon.
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
  [ -z "$dir" ] || [ -d "$root$dir" ] || problem "--model-root $dir: the folder does not exist"
}

# set_flag FLAG replaces the flag with the same name.
set_flag() {
  awk -v name="${1%%=*}" '{key = $0; sub(/=.*/, "", key)} key != name' "$work/flags" >"$work/flags.new"
  printf '%s\n' "$1" >>"$work/flags.new"
  cat "$work/flags.new" >"$work/flags"
}

# --- current state and planned changes --------------------------------------------------------------------------------

has_record() { dscl . -read "$1" >/dev/null 2>&1; }
has_user() { dscl . -read "/Users/$account" UniqueID >/dev/null 2>&1; }
has_group() { dscl . -read "/Groups/$account" PrimaryGroupID >/dev/null 2>&1; }
loaded() { launchctl print "system/$1" >/dev/null 2>&1; }
agent_pid() { launchctl print "system/$label" 2>/dev/null | awk '$1 == "pid" && $2 == "=" {print $3; exit}'; }
remembered() { [ -f "$before" ] && grep -q "^$1=" "$before"; }
current() { if [ -L "$programs/current" ]; then basename "$(readlink "$programs/current")"; fi; }
engines() { ps -A -o user= -o pid= -o comm= | awk -v u="$account" '$1 == u && $3 ~ /\/engine$/ {print $2}'; }

# render creates the daemon's plist: the archive's, with the flags of agent.flags as additional arguments.
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
  plutil -lint "$work/agent.plist" >/dev/null || die "cannot create a valid plist from agent.flags: ${flags#"$root"} has a line that a plist cannot contain"
}

todo=
will() { todo="$todo $1"; shift; say "  $*" >>"$work/plan"; }

# plan_install lists the steps in order. Each has the functions do_STEP and undo_STEP.
plan_install() {
  if ! has_user || ! has_group; then will account "create the account and the group $account, which cannot log in"; fi
  for dir in "$state" "$etc" "$logs"; do
    [ -d "$dir" ] || { will folders "create ${state#"$root"} (identity, weights), ${etc#"$root"} (flags) and ${logs#"$root"} (log)"; break; }
  done
  if ! cmp -s "$here/SHA256SUMS" "$programs/versions/$version/SHA256SUMS"; then
    will programs "install $version into ${programs#"$root"}/versions/$version"
  fi
  if ! cmp -s "$work/flags" "$flags" || shown "$flags"; then
    given=$(sed '/^$/d; /^#/d' "$work/flags" | tr '\n' ' ')
    will flags "write the agent's flags to ${flags#"$root"}: ${given:-none}"
  fi
  plan_settings
  restart=no
  if [ "$(current)" != "$version" ] || ! cmp -s "$work/agent.plist" "$daemons/$label.plist" || ! loaded "$label"; then restart=yes; fi
  case $todo in *programs* | *account*) restart=yes ;; esac
  [ -z "$join" ] || restart=yes
  if [ "$restart" = yes ]; then
    ! loaded "$label" || will stop "stop the running agent; running requests finish first, its engines keep running and the new agent adopts them"
    [ "$(current)" = "$version" ] || will current "point ${programs#"$root"}/current to $version$(old=$(current); [ -z "$old" ] || printf ' (currently %s)' "$old")"
  fi
  if ! cmp -s "$work/agent.plist" "$daemons/$label.plist" || shown "$daemons/$label.plist"; then
    will daemon "write ${daemons#"$root"}/$label.plist, which runs the daemon as $account at each start of this Mac"
  fi
  plan_firewall
  [ -z "$join" ] || will join "join the fleet with the token; this Mac creates its private key and never sends it"
  [ "$restart" = no ] || will start "start the daemon and check that it keeps running"
}

plan_settings() {
  if [ -n "$wired" ]; then
    sed "s/@MIB@/$wired/" "$here/$limit_label.plist" >"$work/limit.plist"
    if [ "$wired" -eq 0 ]; then
      [ "$wired_now" -eq 0 ] && [ ! -f "$daemons/$limit_label.plist" ] || will wired "restore the GPU limit of macOS (iogpu.wired_limit_mb is $wired_now)"
    elif [ "$wired" -ne "$wired_now" ] || ! cmp -s "$work/limit.plist" "$daemons/$limit_label.plist"; then
      will wired "set iogpu.wired_limit_mb from $wired_now to $wired, now and at each start (${daemons#"$root"}/$limit_label.plist)"
    fi
  fi
  if [ "$awake" = yes ] && [ "${sleep_now:-1}" -ne 0 ]; then
    will awake "disable sleep while this Mac has power (pmset -c sleep 0; currently ${sleep_now:-unknown})"
  fi
}

plan_firewall() {
  if [ "$firewall" = yes ] || remembered firewall; then
    case $todo in
      *current*) will firewall "allow connections to the agent of $version in the application firewall" ;;
      *) remembered firewall || will firewall "allow connections to the agent of $version in the application firewall" ;;
    esac
  fi
}

# --- the steps, and how to undo each ----------------------------------------------------------------------------------

# remember NAME VALUE stores the original value of a setting for --uninstall; later calls do not overwrite it.
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
  [ -n "$number" ] || die "all IDs from 300 to 399 are in use: there is none for the account $account"
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
  [ ! -f "$identity" ] || return 0 # the identity belongs to this account
  if [ "$made_user" = yes ] && has_record "/Users/$account"; then dscl . -delete "/Users/$account"; fi
  if [ "$made_group" = yes ] && has_record "/Groups/$account"; then dscl . -delete "/Groups/$account"; fi
}

do_folders() {
  made_folders=
  for dir in "$root/usr/local/etc" "$etc" "$root/usr/local/var" "$state" "$logs"; do
    [ -d "$dir" ] || made_folders="$dir$newline$made_folders"
    mkdir -p "$dir"
  done
  chown -h "root:wheel" "$etc" "$logs" # $account exchanges nothing in the logs until it gets them back
  if [ -L "$logs/agent.log" ] || [ ! -f "$logs/agent.log" ]; then
    rm -rf "$logs/agent.log"
    : >"$logs/agent.log" # launchd would create it with the daemon's umask, and no other account could read it
    chown -h "$account:admin" "$logs/agent.log"
    chmod 640 "$logs/agent.log"
  fi
  chmod 755 "$etc"
  chmod 700 "$state"
  chmod 750 "$logs"
  chown -h "$account:$account" "$state"
  chown -h "$account:admin" "$logs"
}
undo_folders() {
  # A state folder with an identity stays: its join token cannot be used again.
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
  (cd "$to/.new" && shasum -a 256 -c SHA256SUMS >/dev/null) || die "the files copied to ${to#"$root"} differ from the archive: check whether the disk is full or failing"
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

# private FROM TO writes a file that only root reads: flags may have the password of a proxy.
private() {
  rm -f "$2"
  (umask 077 && cat "$1" >"$2")
  chown root:wheel "$2"
}
# shown FILE: may other accounts read it? An older version wrote it so.
shown() { [ -n "$(find "$1" ! -perm 600 2>/dev/null)" ]; }

do_flags() {
  keep "$flags"
  private "$work/flags" "$flags"
}
undo_flags() { put_back "$flags"; }

# keep FILE saves a copy for put_back.
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

# bootout LABEL stops a daemon and waits until launchd has released it: a bootstrap before that fails.
bootout() {
  launchctl bootout "system/$1" 2>/dev/null || true
  left=$stop_seconds
  while loaded "$1"; do
    [ "$left" -gt 0 ] || { complain "$1 does not stop: see launchctl print system/$1"; return 1; }
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
  private "$work/agent.plist" "$daemons/$label.plist"
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
undo_join() { [ ! -f "$identity" ] || complain "this Mac has already joined the fleet: run install.sh again without --join"; }

do_start() {
  launchctl enable "system/$label"
  launchctl bootstrap system "$daemons/$label.plist"
  # An agent that cannot run exits immediately, and launchd restarts it after ten seconds: so wait for a stable process ID.
  left=30 pid='' since=$left
  while [ "$left" -gt 0 ]; do
    sleep 1
    left=$((left - 1))
    now=$(agent_pid)
    [ "$now" = "$pid" ] || { pid=$now since=$left; }
    if [ -n "$pid" ] && [ $((since - left)) -ge 5 ]; then return; fi
  done
  complain "the agent does not keep running; the last lines of ${logs#"$root"}/agent.log:"
  # The account of the agent writes the log: no escape sequence of it reaches root's terminal.
  { tail -n 5 "$logs/agent.log" | LC_ALL=C tr -d '\000-\010\013-\037\177'; } >&2 2>/dev/null || true
  return 1
}
undo_start() { bootout "$label"; }

# --- running the plan -------------------------------------------------------------------------------------------------

undo=
locked=no
# finish runs at every exit. It undoes a failed install, last step first, including the step that failed.
finish() {
  status=$?
  trap - EXIT
  trap '' INT TERM HUP
  set +eu
  if [ "$status" -ne 0 ] && [ -n "$undo" ]; then
    complain "failed; undoing all changes"
    for step in $undo; do "undo_$step" || complain "could not undo: $step"; done
  fi
  [ "$locked" = no ] || rmdir "$lock"
  rm -rf "$work"
  exit "$status"
}

# ask prints the plan and exits unless the user confirms it.
ask() {
  if [ ! -s "$work/plan" ]; then
    say "$1"
    exit 0
  fi
  say "changes:"
  cat "$work/plan"
  [ "$dry" = no ] || { say "dry run: nothing was changed"; exit 0; }
  if [ "$yes" = no ]; then
    printf 'continue? [y/N] '
    answer=
    read -r answer || true
    case $answer in y | Y | yes) ;; *) die "nothing was changed" ;; esac
  fi
  mkdir -p "$root/var/run"
  mkdir "$lock" 2>/dev/null || die "another install.sh is running; if none is, remove ${lock#"$root"}"
  locked=yes
}

# check_folders refuses links in place of the folders whose owner is set, and folders of another account above what root writes:
# their owner could put links in place of them.
check_folders() {
  for dir in "$state" "$etc" "$logs"; do
    [ ! -L "$dir" ] || problem "${dir#"$root"} is a link: remove it, because install.sh changes the owner of this folder"
  done
  for dir in /usr/local /usr/local/etc "${etc#"$root"}" /usr/local/var /Library/Logs "${daemons#"$root"}" "${programs#"$root"}"; do
    [ -e "$root$dir" ] || [ -L "$root$dir" ] || continue
    if [ -L "$root$dir" ]; then
      problem "$dir is a link: replace it by a folder of root, because root writes there"
    elif [ "$(stat -f %u "$root$dir")" != 0 ]; then
      problem "$dir does not belong to root, who writes there: run sudo chown root:wheel $dir"
    fi
  done
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
  check_folders
  [ "$problems" -eq 0 ] || die "nothing was changed"
  render
  plan_install
  ask "metalfleet $version is installed and running with these settings: nothing to change"
  for step in $todo; do
    undo="$step $undo"
    "do_$step"
  done
  undo=
  tidy
  say "metalfleet $version is running; its log is ${logs#"$root"}/agent.log. To see this Mac in the cluster: kubectl get mac"
}

# tidy removes all versions except this one and the previous one.
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

# --- uninstall --------------------------------------------------------------------------------------------------------

plan_uninstall() {
  count=$(engines | wc -l | tr -d ' ')
  ! loaded "$label" || will away_agent "stop the agent; running requests finish first"
  [ "$count" -eq 0 ] || will away_engines "stop the running engines ($count) and free their memory: drain this Mac first with \`kubectl metalfleet drain NAME\` to lose no request"
  if [ -f "$daemons/$label.plist" ]; then will away_daemon "remove ${daemons#"$root"}/$label.plist"; fi
  if remembered firewall; then will away_firewall "remove the agent from the application firewall's list"; fi
  if remembered wired || [ -f "$daemons/$limit_label.plist" ]; then will away_wired "restore iogpu.wired_limit_mb to its original value ($(was wired))"; fi
  if remembered sleep; then will away_awake "restore sleep to its original value ($(was sleep) minutes)"; fi
  if [ -d "$programs" ]; then will away_programs "remove ${programs#"$root"}"; fi
  [ "$purge" = yes ] || return 0
  if [ -d "$state" ] || [ -d "$etc" ] || [ -d "$logs" ]; then
    will away_folders "remove ${state#"$root"} (identity, and all downloaded weights), ${etc#"$root"} and ${logs#"$root"}"
  fi
  if has_user || has_group; then will away_account "remove the account and the group $account"; fi
}

do_away_agent() { bootout "$label"; }

# A process killed while computing can leak GPU memory that no process owns: send SIGTERM first, and wait.
do_away_engines() {
  for signal in TERM KILL; do
    left=$engine_seconds
    for pid in $(engines); do kill "-$signal" "$pid" 2>/dev/null || true; done
    while [ -n "$(engines)" ] && [ "$left" -gt 0 ]; do
      sleep 1
      left=$((left - 1))
    done
  done
  [ -z "$(engines)" ] || die "engines of $account do not stop: restart this Mac, then run this command again"
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
  [ "$purge" = yes ] || [ ! -d "$state" ] || say "keeping ${state#"$root"} (identity, weights), ${etc#"$root"}, ${logs#"$root"} and the account $account; --purge removes them too"
  ask "metalfleet is not installed on this Mac: nothing to remove"
  for step in $todo; do "do_$step"; done
  say "metalfleet is removed from this Mac. To remove the Mac from the cluster: kubectl delete mac NAME"
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
