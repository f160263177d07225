package cluster

import (
	"bytes"
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"metalfleet.dev/metalfleet/test/pki"
	"metalfleet.dev/metalfleet/test/process"
	"metalfleet.dev/metalfleet/test/sandbox"
)

// Addresses inside; none is routed anywhere else.
const (
	nodeName    = "node-1"
	nodeAddress = sandbox.Address
	nodeRouter  = "192.0.2.1" // no machine has it
	services    = "10.96.0.0/16"
	firstIP     = "10.96.0.1"
	dnsAddress  = "10.96.0.10"
	pods        = "10.244.0.0/24"
)

// ready bounds each wait for a program: three times what a busy two-core
// machine was seen to take.
const ready = 90 * time.Second

// Options configure a cluster.
type Options struct {
	// Bin is the folder of the programs (bin/kube).
	Bin string
	// Dir holds state, logs and the kubeconfig; it must be empty or not exist.
	Dir string
	// Images are archives to import, by path. Those of pause and CoreDNS are
	// among them: PauseImage, DNSImage.
	Images []string
	// Say, if set, is called with each step.
	Say func(step string)
}

// Names of the images that the cluster itself needs.
const (
	PauseImage = "metalfleet.test/pause:1"
	DNSImage   = "metalfleet.test/coredns:1"
)

// Cluster is a running one. It must be called inside a Sandbox.
type Cluster struct {
	// Kubeconfig is an administrator's.
	Kubeconfig string
	// LogDir has one file for each program.
	LogDir string

	o          Options
	pki        *pki.Authority
	programs   []*process.Program // in the order in which they were started
	containerd *process.Program
}

// Start brings the cluster up and returns when CoreDNS is ready. ctx bounds the
// start alone.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c := &Cluster{o: o, LogDir: filepath.Join(o.Dir, "log")}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	if err := c.prepare(ctx); err != nil {
		return err
	}
	side, ctx := errgroup.WithContext(ctx)
	side.Go(func() error { return c.controlPlane(ctx) })
	side.Go(func() error { return c.runtime(ctx) })
	if err := side.Wait(); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if err := c.node(ctx); err != nil {
		return err
	}
	return c.dns(ctx)
}

// prepare makes folders, the node's network and all certificates.
func (c *Cluster) prepare(ctx context.Context) error {
	for _, dir := range []string{"log", "etcd", "containerd", "cni", "kubelet"} {
		if err := os.MkdirAll(c.file(dir), 0o755); err != nil {
			return fmt.Errorf("folder of the cluster: %w", err)
		}
	}
	// One end of a pair is the uplink; the other leads nowhere.
	if err := sandbox.IP(ctx, "link add up0 type veth peer name up1", "addr add "+nodeAddress+"/24 dev up0",
		"link set up0 up", "link set up1 up", "route add default via "+nodeRouter); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return fmt.Errorf("forward packets: %w", err)
	}
	var err error
	node := net.ParseIP(nodeAddress)
	c.pki, err = pki.New(c.file("pki"),
		pki.Leaf{Name: "apiserver", Subject: pkix.Name{CommonName: "kube-apiserver"},
			IPs: []net.IP{net.IPv4(127, 0, 0, 1), net.ParseIP(firstIP), node},
			DNS: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}},
		pki.Leaf{Name: "admin", Subject: masters("admin")},
		pki.Leaf{Name: "to-kubelet", Subject: masters("kube-apiserver-kubelet-client")},
		pki.Leaf{Name: "controllers", Subject: pkix.Name{CommonName: "system:kube-controller-manager"}},
		pki.Leaf{Name: "scheduler", Subject: pkix.Name{CommonName: "system:kube-scheduler"}},
		pki.Leaf{Name: "proxy", Subject: pkix.Name{CommonName: "system:kube-proxy"}},
		pki.Leaf{Name: "kubelet", Subject: pkix.Name{CommonName: "system:node:" + nodeName, Organization: []string{"system:nodes"}}, IPs: []net.IP{node}, DNS: []string{nodeName}},
		pki.Leaf{Name: "sa", Subject: pkix.Name{CommonName: "service-accounts"}})
	if err != nil {
		return err
	}
	for _, who := range []string{"admin", "controllers", "scheduler", "proxy", "kubelet"} {
		if err := c.pki.Kubeconfig(c.kubeconfig(who), "https://"+nodeAddress+":6443", who); err != nil {
			return err
		}
	}
	c.Kubeconfig = c.kubeconfig("admin")
	return nil
}

func masters(name string) pkix.Name {
	return pkix.Name{CommonName: name, Organization: []string{"system:masters"}}
}

func (c *Cluster) file(name string) string      { return filepath.Join(c.o.Dir, name) }
func (c *Cluster) kubeconfig(who string) string { return c.pki.File(who + ".kubeconfig") }
func (c *Cluster) bin(name string) string       { return filepath.Join(c.o.Bin, name) }
func (c *Cluster) say(format string, a ...any) {
	if c.o.Say != nil {
		c.o.Say(fmt.Sprintf(format, a...))
	}
}

// launch starts a program of the cluster.
func (c *Cluster) launch(name string, args ...string) (*process.Program, error) {
	p := process.New(name, c.bin(name), c.LogDir, args...)
	if err := p.Start(); err != nil {
		return nil, err
	}
	return p, nil
}

// Kubectl runs kubectl as an administrator and returns what it printed.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return output(ctx, c.bin("kubectl"), append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
}

// Failed is an error for each program that has ended by itself.
func (c *Cluster) Failed() error {
	var errs []error
	for _, p := range c.programs {
		errs = append(errs, p.Failed())
	}
	return errors.Join(errs...)
}

// Offline stops the control plane and the node's agents, calls do, and starts them again.
// Containers run on. etcd's data are in EtcdDir, whole while do runs.
func (c *Cluster) Offline(ctx context.Context, do func() error) error {
	for i := len(c.programs) - 1; i >= 0; i-- {
		if p := c.programs[i]; p != c.containerd {
			if err := p.Stop(ctx); err != nil {
				return err
			}
		}
	}
	c.programs = nil
	if err := do(); err != nil {
		return err
	}
	if err := c.controlPlane(ctx); err != nil {
		return err
	}
	return c.node(ctx)
}

// EtcdDir is the folder of etcd's data.
func (c *Cluster) EtcdDir() string { return c.file("etcd") }

// Stop ends Pods and programs. What it does not reach ends with the sandbox.
func (c *Cluster) Stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	for i := len(c.programs) - 1; i >= 0; i-- {
		if p := c.programs[i]; p != c.containerd {
			errs = append(errs, p.Stop(ctx))
		}
	}
	if c.containerd != nil {
		errs = append(errs, c.endContainers(ctx), c.containerd.Stop(ctx))
	}
	return errors.Join(errs...)
}

// output is what a program writes to its standard output; its error has what it
// wrote to the other one.
func output(ctx context.Context, program string, args ...string) (string, error) {
	var warnings bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stderr = &warnings
	b, err := cmd.Output()
	if err != nil {
		return string(b), fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, strings.TrimSpace(warnings.String()))
	}
	return string(b), nil
}
