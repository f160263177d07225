package cluster

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/test/process"
)

//go:embed coredns.yaml
var coredns string

const (
	etcdURL = "http://127.0.0.1:2379" // of this network namespace alone
	socket  = "/run/containerd.sock"
)

// controlPlane starts etcd, the API server, the controllers and the scheduler.
func (c *Cluster) controlPlane(ctx context.Context) error {
	etcd, err := c.launch("etcd", "--data-dir="+c.file("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--heartbeat-interval=20", "--election-timeout=200",
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL, "--listen-peer-urls=http://127.0.0.1:2380")
	if err != nil {
		return err
	}
	if err := c.await(ctx, etcd, func(ctx context.Context) error { return dials(ctx, "tcp", "127.0.0.1:2379") }); err != nil {
		return err
	}
	f := c.pki.File
	api, err := c.launch("kube-apiserver", "--etcd-servers="+etcdURL, "--secure-port=6443", "--bind-address=0.0.0.0", "--advertise-address="+nodeAddress,
		"--tls-cert-file="+f("apiserver.crt"), "--tls-private-key-file="+f("apiserver.key"), "--client-ca-file="+f("ca.crt"),
		"--kubelet-client-certificate="+f("to-kubelet.crt"), "--kubelet-client-key="+f("to-kubelet.key"),
		"--kubelet-certificate-authority="+f("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+f("sa.key"),
		"--service-account-signing-key-file="+f("sa.key"),
		"--requestheader-client-ca-file="+f("ca.crt"), "--requestheader-allowed-names=front-proxy",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--service-cluster-ip-range="+services, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction")
	if err != nil {
		return err
	}
	if err := c.await(ctx, api, func(ctx context.Context) error {
		_, err := c.Kubectl(ctx, "get", "--raw", "/readyz")
		return err
	}); err != nil {
		return err
	}
	c.say("API server")
	as := func(who string) []string {
		k := c.kubeconfig(who)
		return []string{"--kubeconfig=" + k, "--authentication-kubeconfig=" + k, "--authorization-kubeconfig=" + k, "--leader-elect=false", "--bind-address=127.0.0.1"}
	}
	controllers, err := c.launch("kube-controller-manager", append(as("controllers"), "--use-service-account-credentials",
		"--kube-api-qps=200", "--kube-api-burst=400", "--service-account-private-key-file="+f("sa.key"), "--root-ca-file="+f("ca.crt"),
		"--node-monitor-period=1s", "--controller-start-interval=0s")...)
	if err != nil {
		return err
	}
	scheduler, err := c.launch("kube-scheduler", as("scheduler")...)
	if err != nil {
		return err
	}
	c.programs = append(c.programs, etcd, api, controllers, scheduler)
	return nil
}

// runtime starts containerd and imports the images.
func (c *Cluster) runtime(ctx context.Context) error {
	for path, text := range map[string]string{c.file("containerd.toml"): c.containerdConfig(), c.file("cni/10-bridge.conflist"): bridge} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
	}
	p := process.New("containerd", c.bin("containerd"), c.LogDir, "-c", c.file("containerd.toml"))
	p.Env = []string{"PATH=" + c.o.Bin + ":" + os.Getenv("PATH")} // it looks for its shim and runc there
	if err := p.Start(); err != nil {
		return err
	}
	c.containerd = p
	if err := c.await(ctx, p, func(ctx context.Context) error { _, err := c.ctr(ctx, "version"); return err }); err != nil {
		return err
	}
	for _, image := range c.o.Images {
		if _, err := c.ctr(ctx, "images", "import", image); err != nil {
			return err
		}
	}
	c.say("%d images", len(c.o.Images))
	return nil
}

func (c *Cluster) ctr(ctx context.Context, args ...string) (string, error) {
	return output(ctx, c.bin("ctr"), append([]string{"-a", socket, "-n", "k8s.io"}, args...)...)
}

// node starts kubelet and kube-proxy.
func (c *Cluster) node(ctx context.Context) error {
	for path, text := range map[string]string{c.file("kubelet.yaml"): c.kubeletConfig(), c.file("proxy.yaml"): c.proxyConfig(), c.file("resolv.conf"): "nameserver 127.0.0.1\n"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return fmt.Errorf("configuration: %w", err)
		}
	}
	c.programs = append(c.programs, c.containerd)
	kubelet, err := c.launch("kubelet", "--config="+c.file("kubelet.yaml"), "--kubeconfig="+c.kubeconfig("kubelet"),
		"--root-dir="+c.file("kubelet"), "--hostname-override="+nodeName, "--node-ip="+nodeAddress, "--cert-dir="+c.file("pki"))
	if err != nil {
		return err
	}
	proxy, err := c.launch("kube-proxy", "--config="+c.file("proxy.yaml"))
	if err != nil {
		return err
	}
	c.programs = append(c.programs, kubelet, proxy)
	if err := c.await(ctx, kubelet, func(ctx context.Context) error {
		_, err := c.Kubectl(ctx, "wait", "--for=condition=Ready", "--timeout=1s", "node/"+nodeName)
		return err
	}); err != nil {
		return err
	}
	c.say("node")
	return nil
}

// dns starts CoreDNS.
func (c *Cluster) dns(ctx context.Context) error {
	manifest := c.file("coredns.yaml")
	if err := os.WriteFile(manifest, []byte(strings.NewReplacer("$IMAGE", DNSImage, "$ADDRESS", dnsAddress).Replace(coredns)), 0o644); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if _, err := c.Kubectl(ctx, "apply", "-f", manifest); err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "-n", "kube-system", "rollout", "status", "deploy/coredns", "--timeout="+ready.String()); err != nil {
		return errors.Join(err, c.Failed())
	}
	c.say("CoreDNS")
	return nil
}

// await waits until a program is ready.
func (c *Cluster) await(ctx context.Context, p *process.Program, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, ready, fmt.Errorf("not within %s", ready))
	defer cancel()
	return p.Ready(ctx, ask)
}

func dials(ctx context.Context, network, address string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// endContainers kills every container and waits for their shims.
func (c *Cluster) endContainers(ctx context.Context) error {
	for {
		out, err := c.ctr(ctx, "tasks", "ls", "-q")
		if err != nil {
			return err
		}
		tasks := strings.Fields(out)
		if len(tasks) == 0 {
			return nil
		}
		for _, t := range tasks {
			_, _ = c.ctr(ctx, "tasks", "rm", "-f", t) // it may have ended by itself: the next pass lists what is left
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("containers that do not end: %s: %w", strings.Join(tasks, ", "), ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
