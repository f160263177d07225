# Sourced by run.sh. preflight PORT prints one line for each missing prerequisite with its fix, and fails if there is any. It
# changes nothing.

# Sizes in MiB. Compiling Kubernetes needs the most: several compilers run in parallel, and the build cache grows. Released
# programs are downloaded (100 MB) and unpacked (300 MB).
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
    *) echo "go env GOVERSION reports \"$version\""; return ;;
  esac
  minor=${version#go1.}
  minor=${minor%%[!0-9]*}
  [ "${minor:-0}" -ge 26 ] || echo "Go is $version, but 1.26 or newer is required"
}

# free_disk FOLDER and free_memory print MiB, or nothing if the value is unknown.
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

# taken PORT: is a program listening there?
taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# short WANTED FOUND: is FOUND less than WANTED? An unknown value passes.
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
        problem "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS contains no program $tool" "unset it to build Kubernetes here"
    done
  fi
}

# check_room checks disk and memory before it is known whether Kubernetes must be compiled.
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
      problem "the disk of $dir has $found MiB free, but $disk MiB are required" "free disk space (go clean -cache empties Go's build cache)"
      break
    fi
  done
  found=$(free_memory)
  short "$memory" "$found" &&
    problem "$found MiB of memory are free, but $memory MiB are required" "close some programs"
}

check_ports() {
  local port=$1
  case $port in
    0) return ;;
    *[!0-9]* | "") problem "PORT=$port is not a port" "run it with a port such as PORT=8080"; return ;;
  esac
  [ "$port" -le 65535 ] || { problem "PORT=$port is not a port" "run it with a port such as PORT=8080"; return; }
  ! taken "$port" || problem "port $port on 127.0.0.1 is in use" "stop the program that uses it, or choose another port: PORT=8181 make quickstart"
}

preflight() {
  echo "== checking this machine"
  check_tools
  have go && check_room
  check_ports "$1"
  [ "$problems" -eq 0 ] || { echo "quickstart: fix the $problems problem(s) above first" >&2; return 1; }
  echo "   $(go env GOVERSION), $(free_disk "$PWD") MiB of disk and $(free_memory) MiB of memory free"
}
