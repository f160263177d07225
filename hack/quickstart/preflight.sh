# Sourced by run.sh. preflight PORT says, one line for each, what this machine lacks and how to mend it, and fails if
# anything is lacking. It changes nothing.

# Amounts in MiB. Compiling Kubernetes takes the most: several compilers run at once, and the build cache grows. Released
# programs are fetched (100 MB) and unpacked (300 MB).
disk_compile=8000
disk_fetch=1500
disk_warm=1000
memory_compile=4000
memory_warm=1500

have() { command -v "$1" >/dev/null 2>&1; }

have_pip() { have python3 && python3 -m pip --version >/dev/null 2>&1; }

problems=0
problem() {
  problems=$((problems + 1))
  echo "   - $1: $2" >&2
}

# go_problem prints what is wrong with this Go, or nothing.
go_problem() {
  have go || { echo "Go is missing"; return; }
  local version minor
  version=$(go env GOVERSION 2>/dev/null)
  case $version in
    go1.*) ;;
    devel*) return ;;
    *) echo "go env GOVERSION says \"$version\""; return ;;
  esac
  minor=${version#go1.}
  minor=${minor%%[!0-9]*}
  [ "${minor:-0}" -ge 26 ] || echo "Go is $version, 1.26 or newer is needed"
}

# free_disk FOLDER and free_memory print MiB, or nothing where it cannot be known.
free_disk() {
  local dir=$1
  while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
  df -Pk "$dir" 2>/dev/null | awk 'NR == 2 { printf "%d", $4 / 1024 }'
}

free_memory() {
  if [ -r /proc/meminfo ]; then
    awk '/^MemAvailable:/ { printf "%d", $2 / 1024 }' /proc/meminfo
  elif have vm_stat; then
    vm_stat | awk '/page size of/ { size = $8 } /^Pages (free|inactive|speculative|purgeable)/ { gsub(/\./, "", $NF); n += $NF } END { printf "%d", n * size / 1048576 }'
  fi
}

# taken PORT: a program listens there.
taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# short WANTED FOUND: fewer were found; unknown is not held against the machine.
short() { [ -n "$2" ] && [ "$2" -lt "$1" ]; }

check_tools() {
  local tool wrong
  wrong=$(go_problem)
  [ -z "$wrong" ] || problem "$wrong" "install it from https://go.dev/dl and open a new terminal"
  for tool in git make awk; do
    have $tool || problem "$tool is missing" "install it with the package manager of this system (on a Mac: xcode-select --install)"
  done
  if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
    for tool in etcd kube-apiserver kubectl; do
      [ -x "$KUBEBUILDER_ASSETS/$tool" ] ||
        problem "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS holds no program $tool" "unset it, and Kubernetes is built here"
    done
  fi
}

# check_room: what is needed until it is known whether Kubernetes has to be compiled.
check_room() {
  if [ -n "${KUBEBUILDER_ASSETS:-}" ] || [ -x bin/kube/kube ] || [ -e bin/kube/released ]; then
    want_room "$disk_warm" "$memory_warm"
  elif [ "${KUBE_MIRROR:-}" = none ]; then
    want_room "$disk_compile" "$memory_compile"
  else
    want_room "$disk_fetch" "$memory_warm"
  fi
}

# want_room DISK MEMORY, in MiB.
want_room() {
  local disk=$1 memory=$2 cache dir found
  cache=$(go env GOCACHE 2>/dev/null)
  for dir in "$PWD" "${cache:-$PWD}"; do
    found=$(free_disk "$dir")
    if short "$disk" "$found"; then
      problem "$found MiB are free on the disk of $dir, $disk are needed" "free some (go clean -cache empties Go's build cache)"
      break
    fi
  done
  found=$(free_memory)
  short "$memory" "$found" &&
    problem "$found MiB of memory are free, $memory are needed" "close some programs"
}

check_ports() {
  local port=$1
  case $port in
    0) return ;;
    *[!0-9]* | "") problem "PORT=$port is not a port" "run it with PORT=8080, say"; return ;;
  esac
  [ "$port" -le 65535 ] || { problem "PORT=$port is not a port" "run it with PORT=8080, say"; return; }
  ! taken "$port" || problem "port $port of 127.0.0.1 is taken" "end the program that has it, or choose another: PORT=8181 make quickstart"
}

preflight() {
  echo "== looking at this machine"
  check_tools
  have go && check_room
  check_ports "$1"
  [ "$problems" -eq 0 ] || { echo "quickstart: $problems problem(s) to mend first, each with its fix above" >&2; return 1; }
  echo "   $(go env GOVERSION), $(free_disk "$PWD") MiB of disk and $(free_memory) MiB of memory free"
}
