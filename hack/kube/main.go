// Command kube is the local Kubernetes that tests and the quickstart talk to:
// etcd, kube-apiserver, kube-controller-manager and kubectl as one program,
// chosen by the name it is called by (a link made by `make kube`), else by
// its first argument.
//
// One binary links the shared three quarters of these programs once. It has a
// module of its own so that the operator's module never carries Kubernetes'
// server code; its versions are held equal to the root module's (a test in
// hack/lint), so that packages both use are compiled once.
//
// It refuses every other component: nodes, proxies and schedulers belong to
// the cluster tier. Start reading at components.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics of the servers
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	kubeapiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

// walSegmentBytes replaces etcd's 64 MiB: it allocates two segments ahead,
// and a throw-away control plane should not cost 128 MB of disk to start.
const walSegmentBytes = 4 << 20

func main() {
	name, args := choose(os.Args)
	run, ok := components()[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "kube: %q is not a component of this binary; call it as one of: %s\n", name, strings.Join(names(), ", "))
		os.Exit(2)
	}
	os.Args = args
	os.Exit(run())
}

// choose finds the component's name and the arguments it should see: the
// program's own name decides, and where that says nothing its first argument.
func choose(argv []string) (name string, args []string) {
	name = filepath.Base(argv[0])
	if _, ok := components()[name]; ok || len(argv) < 2 {
		return name, argv
	}
	return argv[1], argv[1:]
}

// components are the programs inside, by name; each returns an exit status.
func components() map[string]func() int {
	return map[string]func() int{
		"etcd": func() int {
			wal.SegmentSizeBytes = walSegmentBytes
			etcdmain.Main(os.Args)
			return 0
		},
		"kube-apiserver": func() int {
			return cli.Run(kubeapiserver.NewAPIServerCommand())
		},
		"kube-controller-manager": func() int {
			return cli.Run(controllermanager.NewControllerManagerCommand())
		},
		"kubectl": kubectl,
	}
}

func names() []string {
	var out []string
	for n := range components() {
		out = append(out, n)
	}
	sort.Strings(out)
	return out
}

// kubectl reports its own errors in its own words, so it does not go through
// cli.Run, which would print a usage text with each.
func kubectl() int {
	if _, err := logs.GlogSetter(cmd.GetLogVerbosity(os.Args)); err != nil {
		fmt.Fprintln(os.Stderr, "kubectl: log verbosity:", err)
		return 1
	}
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err) // exits with the error's own code
		return 1
	}
	return 0
}
