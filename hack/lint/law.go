package lint

import (
	"fmt"
	"strings"
)

// modulePath is the root module; paths in the law are relative to it.
const modulePath = "metalfleet.dev/metalfleet"

// anything matches every import path of its kind.
const anything = "..."

// room is one part of the tree and the packages that it may import in addition to the
// standard library. A pattern is one package, or with "/..." also everything under it.
type room struct {
	path string   // this package and those under it; the longest matching path applies
	only bool     // this package alone: packages under it need a room of their own
	own  []string // packages of this module
	kube []string // packages of k8s.io and sigs.k8s.io
	libs []string // packages of other modules
	why  string   // explains a breach
}

// bridge is the only package with C in it.
const bridge = "metal/mlx"

// tinymodel writes models for tests; it is next to the packages that read them.
const tinymodel = "metal/tinymodel"

// testOnly are the packages that every _test.go file may import, but no file of the
// product.
func testOnly() []string {
	return []string{"test/patience", "test/pki", "test/process", "test/race", "test/seed", "test/testenv", tinymodel}
}

// goLibs are the libraries that metal may use in addition to the standard library.
func goLibs() []string {
	return []string{
		"golang.org/x/...", "google.golang.org/grpc/...", "google.golang.org/protobuf/...",
		"google.golang.org/genproto/googleapis/rpc/...", "github.com/dlclark/regexp2/...", "github.com/cespare/xxhash/v2",
		"github.com/landlock-lsm/go-landlock/...",
	}
}

// law is the import law of the architecture, room by room.
func law() []room {
	every := []string{anything}
	rooms := []room{
		{path: "api", own: []string{"api/..."}, kube: []string{"k8s.io/apimachinery/..."},
			why: "api holds contracts: itself, the standard library and apimachinery only"},
		{path: "api/model", why: "api/model is for every program: the standard library only"},
		{path: "api/v1alpha1", own: []string{"api/..."}, kube: []string{"k8s.io/apimachinery/...", "k8s.io/api/core/v1"},
			why: "api/v1alpha1 may use apimachinery and core/v1, nothing else"},
		{path: "api/applyconfiguration", own: []string{"api/..."},
			kube: []string{"k8s.io/apimachinery/...", "k8s.io/api/core/v1", "k8s.io/client-go/applyconfigurations/...", "sigs.k8s.io/structured-merge-diff/..."},
			why:  "api/applyconfiguration is generated from api/v1alpha1"},
		{path: "api/scrape", own: []string{"api/intake"}, kube: every,
			why: "api/scrape protects metrics and knows nothing of the fleet"},
		{path: "api/watched", own: []string{"api/v1alpha1"}, kube: every, why: "api/watched makes caches of the kinds of the API"},
		{path: "api/intake", own: []string{"api/..."}, libs: []string{"github.com/prometheus/client_golang/prometheus", "golang.org/x/sys/unix"},
			why: "api/intake bounds what clients use and knows nothing of the fleet"},
		{path: "api/tracing", own: []string{"api/tracing/..."}, libs: []string{"github.com/go-logr/logr", "go.opentelemetry.io/...", "google.golang.org/protobuf/proto"},
			why: "api/tracing sends spans and knows nothing of the fleet"},
		{path: "metal", own: []string{"metal/...", "api/model"}, libs: goLibs(),
			why: "metal knows models, not Kubernetes or fleets: itself, api/model and the chosen libraries only"},
		{path: "gateway", own: []string{"gateway/...", "api/..."}, kube: every, libs: every,
			why: "gateway imports api and itself"},
		{path: "controllers", only: true, own: []string{"controllers/...", "api/...", "metal/footprint"}, kube: every, libs: every,
			why: "controllers import api and metal/footprint"},
		{path: "cmd", own: every, kube: every, libs: every,
			why: "a program's own packages are its own"},
		{path: "hack", own: every, kube: every, libs: every,
			why: "programs are not libraries"},
		{path: "test", own: every, kube: every, libs: every,
			why: "programs are not libraries"},
		{path: "config", own: []string{"metal/footprint"}, libs: every,
			why: "config holds manifests and scripts; their tests compare them with metal/footprint only"},
		{path: "config/policy", kube: every, libs: every,
			why: "config/policy holds manifests; its tests ask an API server"},
		{path: "charts", own: []string{"api/v1alpha1", "controllers", "controllers/uninstall"}, kube: every, libs: every,
			why: "charts hold templates; their tests ask Helm, an API server, the operator and Prometheus"},
		{path: "docs",
			why: "docs holds documents and what reads them: the standard library only"},
	}
	return append(append(append(rooms, reconcilers()...), agentRooms()...), pluginRooms()...)
}

// pluginRooms: of the kubectl plugin, only cli and front use the network. It decides with
// the operator's own code, which cmd alone may combine.
func pluginRooms() []room {
	const plugin = "cmd/kubectl-metalfleet"
	var rooms []room
	for _, name := range []string{"drain", "explain", "inventory", "load", "picture", "rehearse"} {
		rooms = append(rooms, room{
			path: plugin + "/internal/" + name,
			own: []string{plugin + "/...", "api/...", "controllers/fleet/...", "controllers/modeldeployment", "controllers/placement/plan",
				"metal/footprint", "docs"},
			kube: []string{"k8s.io/apimachinery/...", "k8s.io/api/...", "k8s.io/utils/..."},
			why:  "what the plugin decides and draws is pure: cli reads and writes",
		})
	}
	return rooms
}

// reconcilers never import one another: each may use fleet, internal and the packages under
// it.
func reconcilers() []room {
	var rooms []room
	for _, name := range []string{"modeldeployment", "modelreplica", "macnode", "placement", "namespacerules", "macclass", "autoscaler", "identity", "hubtoken", "agentupgrade", "uninstall", "fleet", "internal"} {
		path := "controllers/" + name
		rooms = append(rooms, room{
			path: path,
			own:  []string{path + "/...", "controllers/fleet/...", "controllers/internal/...", "api/...", "metal/footprint"},
			kube: []string{anything}, libs: []string{anything},
			why: "reconcilers never import one another: they meet in controllers/fleet and in conditions",
		})
	}
	rooms = append(rooms, room{
		path: "controllers/sim", own: []string{"controllers/...", "api/..."}, kube: []string{"k8s.io/apimachinery/...", "k8s.io/api/...", "k8s.io/utils/..."},
		why: "controllers/sim runs the decisions of the reconcilers, without network",
	}, room{
		path: "controllers/agentupgrade/turn", own: []string{"controllers/agentupgrade/turn/...", "api/..."},
		kube: []string{"k8s.io/apimachinery/...", "k8s.io/api/core/v1"},
		why:  "agentupgrade/turn is pure: it reads a snapshot and uses no network",
	})
	return append(rooms, room{
		path: "controllers/placement/plan", own: []string{"controllers/placement/plan/...", "controllers/fleet", "api/...", "metal/footprint"},
		kube: []string{"k8s.io/apimachinery/...", "k8s.io/api/core/v1", "sigs.k8s.io/yaml"},
		why:  "placement/plan is pure: it reads a snapshot and uses no network",
	})
}

// agentRooms: only seven rooms of the agent talk to Kubernetes; the others may use its
// types, and agent.go passes a client configuration on.
func agentRooms() []room {
	own := []string{"agent/...", "api/...", "metal/excerpt", "metal/wire", "metal/footprint", "metal/kv", "metal/kv/cold/...", "metal/weights/...", "metal/chat", "metal/folder", "metal/toolcall", "metal/share"}
	rooms := []room{{
		path: "agent", own: own, libs: []string{anything},
		kube: []string{"k8s.io/apimachinery/...", "k8s.io/client-go/rest"},
		why:  "agent imports api and the tensor-free parts of metal; only join, account, register, identity, hubtoken, desired and report speak Kubernetes",
	}}
	for _, name := range []string{"join", "account", "register", "identity", "hubtoken", "desired", "report"} {
		rooms = append(rooms, room{
			path: "agent/" + name, own: own, kube: []string{anything}, libs: []string{anything},
			why: "agent imports api and the tensor-free parts of metal",
		})
	}
	return rooms
}

// file is a Go source file and what it imports.
type file struct {
	path    string // relative to the module, with slashes
	pkg     string // its folder
	test    bool
	imports []string
}

// breaches lists, in order, each import that the law refuses.
func breaches(files []file) []string {
	rooms := law()
	var out []string
	for _, f := range files {
		r, ok := roomOf(rooms, f.pkg)
		if !ok {
			out = append(out, fmt.Sprintf("%s: the law knows no room %q; add it there with what it may import", f.path, f.pkg))
			continue
		}
		for _, imp := range f.imports {
			if why := refuse(r, f, imp); why != "" {
				out = append(out, fmt.Sprintf("%s: imports %s: %s", f.path, imp, why))
			}
		}
	}
	return out
}

func roomOf(rooms []room, pkg string) (room, bool) {
	var best room
	found := false
	for _, r := range rooms {
		fits := pkg == r.path || !r.only && match(r.path+"/...", pkg)
		if fits && (!found || len(r.path) > len(best.path)) {
			best, found = r, true
		}
	}
	return best, found
}

// refuse returns why a file may not import a path; empty if it may.
func refuse(r room, f file, imp string) string {
	if own, ok := strings.CutPrefix(imp, modulePath+"/"); ok {
		return refuseOwn(r, f, own)
	}
	switch {
	case isStandard(imp):
		return ""
	case isKube(imp):
		// Tests of code that depends on API server behaviour use a real one.
		if f.test && r.path != "api/model" && !match("metal/...", f.pkg) || matchAny(r.kube, imp) {
			return ""
		}
	case imp == "C":
		if f.pkg == bridge {
			return ""
		}
		return "only metal/mlx speaks C"
	case f.test && match("github.com/google/go-cmp/...", imp), matchAny(r.libs, imp):
		return ""
	}
	return r.why
}

// refuseOwn is refuse for an import of this module, by its path in it.
func refuseOwn(r room, f file, own string) string {
	if match("cmd/...", own) && !sameProgram(f.pkg, own) {
		return "programs are not libraries: no package imports cmd"
	}
	if match("hack/...", own) && !isTooling(f.pkg) {
		return "only hack and test import hack"
	}
	if f.test && matchAny(testOnly(), own) {
		return ""
	}
	if match("test/...", own) && !isTooling(f.pkg) {
		return "only hack and test import test (patience, pki, process, race, seed and testenv: _test.go files everywhere)"
	}
	if own == tinymodel && !isTooling(f.pkg) && !match(tinymodel+"/...", f.pkg) {
		return "metal/tinymodel writes models for tests: only they, hack and test import it"
	}
	if matchAny(r.own, own) {
		return ""
	}
	return r.why
}

// isTooling reports whether a package is outside of the product: tests of more than one
// package, and the tools of the repository.
func isTooling(pkg string) bool { return match("hack/...", pkg) || match("test/...", pkg) }

// sameProgram: cmd/x may import cmd/x/internal.
func sameProgram(pkg, own string) bool {
	parts := strings.SplitN(own, "/", 3)
	return len(parts) == 3 && match(parts[0]+"/"+parts[1]+"/...", pkg)
}

// isStandard: the first element of every other import path has a dot.
func isStandard(imp string) bool {
	first, _, _ := strings.Cut(imp, "/")
	return imp != "C" && !strings.Contains(first, ".")
}

func isKube(imp string) bool {
	return match("k8s.io/...", imp) || match("sigs.k8s.io/...", imp)
}

func matchAny(patterns []string, path string) bool {
	for _, p := range patterns {
		if match(p, path) {
			return true
		}
	}
	return false
}

func match(pattern, path string) bool {
	if pattern == anything {
		return true
	}
	base, deep := strings.CutSuffix(pattern, "/...")
	return path == base || deep && strings.HasPrefix(path, base+"/")
}
