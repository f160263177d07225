// Command node is what a node of the end-to-end cluster runs in addition to its container
// runtime: kubelet, kube-proxy and kube-scheduler as one program, chosen by the name it is
// called by, else by its first argument.
//
// It is a program of its own so that a quickstart, which has no node, neither compiles nor
// links it. It rejects every other name: command kube has the control plane.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	components := map[string]func() int{
		"kubelet":        func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
		"kube-proxy":     func() int { return cli.Run(proxy.NewProxyCommand()) },
		"kube-scheduler": func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	}
	name := filepath.Base(os.Args[0])
	if components[name] == nil && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	run := components[name]
	if run == nil {
		fmt.Fprintln(os.Stderr, "node: call it as kubelet, kube-proxy or kube-scheduler")
		os.Exit(2)
	}
	os.Exit(run())
}
