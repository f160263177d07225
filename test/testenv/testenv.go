// Package testenv runs a real control plane on this machine: etcd,
// kube-apiserver with RBAC, our CRDs, and where asked the controllers that
// collect garbage, end namespaces and make service accounts.
//
// It owns the processes it starts, their certificates and their folder, and
// takes all of them back: on Stop, when Start fails half-way, and on Linux
// also when the process that started them is killed.
//
// It refuses to build or download anything: the programs come from the folder
// KUBEBUILDER_ASSETS names, else from bin/kube, and where they are missing
// Start fails with a line that names the make target. It never skips.
//
// Only _test.go files and programs under hack may import it.
//
// Why not controller-runtime's envtest: the failure tests stop the API server
// and bring it back on the same port with its data, envtest runs no
// controllers, and it leaves etcd and the API server running when its Start
// fails late or the test binary is killed.
//
// Start reading at Start.
package testenv

import (
	"cmp"
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"metalfleet.dev/metalfleet/test/pki"
	"metalfleet.dev/metalfleet/test/process"
)

// readyTimeout bounds each wait for a program to answer: much longer than a busy
// two-core machine was seen to take.
const readyTimeout = 3 * time.Minute

// Options configure a control plane. The zero value runs etcd and
// kube-apiserver with the CRDs of this module in a folder that Stop removes.
type Options struct {
	// Dir holds data, certificates, logs and the kubeconfig. Empty: a scratch
	// folder that Stop removes. A named folder is kept, and its data is used
	// again by the next Start.
	Dir string
	// Port is the API server's, on Address. 0: a free one.
	Port int
	// Address is a numeric one of this machine that others reach the API server
	// at; empty: 127.0.0.1.
	Address string
	// CRDs are globs of files with CustomResourceDefinitions. Nil: config/crd
	// of this module. Empty but not nil: none. A glob without a match fails.
	CRDs []string
	// Controllers asks for kube-controller-manager with the controllers that
	// owner references, namespaces and service accounts need.
	Controllers bool
	// Autoscaling adds the controller of HorizontalPodAutoscalers, looking each
	// second, and an API server that hands requests on to others (APIService).
	Autoscaling bool
}

// Env is a running control plane.
type Env struct {
	// Kubeconfig is a file that lets its reader in as a cluster administrator.
	Kubeconfig string
	// URL is where the API server listens; it stays the same over a restart.
	URL string
	// LogDir holds one file per program.
	LogDir string

	assets  assets
	scaling bool // Options.Autoscaling
	dir     string
	scratch []string // folders that Stop removes
	sockets string   // where etcd listens
	pki     *pki.Authority
	config  *rest.Config
	address string
	port    int

	mu          sync.Mutex // guards what follows
	etcd        *process.Program
	apiserver   *process.Program
	controllers *process.Program
}

// Start brings the control plane up and returns when the API server is ready
// and every CRD can be used. The context bounds the start alone; the control
// plane lives until Stop.
func Start(ctx context.Context, o Options) (*Env, error) {
	e := &Env{}
	if err := e.start(ctx, o); err != nil {
		return nil, errors.Join(err, e.Stop())
	}
	return e, nil
}

func (e *Env) start(ctx context.Context, o Options) error {
	var err error
	if e.assets, err = findAssets(o.Controllers); err != nil {
		return err
	}
	crds, err := readCRDs(o.CRDs)
	if err != nil {
		return err
	}
	if err := e.prepare(o); err != nil {
		return err
	}
	if err := e.startEtcd(ctx); err != nil {
		return err
	}
	if err := e.firstAPIServer(ctx, o.Port); err != nil {
		return err
	}
	// Before the controllers: the garbage collector looks for new kinds only
	// every 30 s, and knows these from the start.
	usable, err := applyCRDs(ctx, e.config, crds)
	if err != nil {
		return err
	}
	if o.Controllers {
		if err := e.startControllers(); err != nil {
			return err
		}
	}
	return waitUntil(ctx, usable)
}

// prepare makes the folders and the certificates.
func (e *Env) prepare(o Options) error {
	e.scaling = o.Autoscaling
	e.dir, e.address = o.Dir, cmp.Or(o.Address, "127.0.0.1")
	ip := net.ParseIP(e.address)
	if ip == nil {
		return fmt.Errorf("address of the API server: %q is no numeric one", e.address)
	}
	if e.dir == "" {
		dir, err := os.MkdirTemp("", "testenv-")
		if err != nil {
			return fmt.Errorf("scratch folder: %w", err)
		}
		e.dir = dir
		e.scratch = append(e.scratch, dir)
	}
	dir, err := filepath.Abs(e.dir)
	if err != nil {
		return fmt.Errorf("folder %s: %w", e.dir, err)
	}
	e.dir = dir
	// A path of its own: the name of a Unix socket may be about 100 bytes.
	if e.sockets, err = os.MkdirTemp("", "te-"); err != nil {
		return fmt.Errorf("socket folder: %w", err)
	}
	e.scratch = append(e.scratch, e.sockets)
	e.LogDir = filepath.Join(e.dir, "logs")
	if err := os.MkdirAll(e.LogDir, 0o700); err != nil {
		return fmt.Errorf("log folder: %w", err)
	}
	e.pki, err = pki.New(filepath.Join(e.dir, "pki"),
		pki.Leaf{Name: "apiserver", Subject: pkix.Name{CommonName: "kube-apiserver"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1), ip}, DNS: []string{"localhost"}},
		pki.Leaf{Name: "admin", Subject: pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}},
		pki.Leaf{Name: "controllers", Subject: pkix.Name{CommonName: "system:kube-controller-manager", Organization: []string{"system:masters"}}},
		pki.Leaf{Name: "proxy", Subject: pkix.Name{CommonName: "front-proxy"}},
		pki.Leaf{Name: "sa", Subject: pkix.Name{CommonName: "service-accounts"}})
	return err
}

// firstAPIServer finds a port, writes the kubeconfig for it and starts the API
// server. Another program may take a free port before it listens: then another
// one is tried, unless the caller named it.
func (e *Env) firstAPIServer(ctx context.Context, port int) error {
	attempts := 3
	if port != 0 {
		attempts = 1
	}
	var err error
	for range attempts {
		e.port = port
		if port == 0 {
			if e.port, err = FreePort(); err != nil {
				return err
			}
		}
		if err = e.useURL(); err != nil {
			return err
		}
		if err = e.StartAPIServer(ctx); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// useURL writes the administrator's kubeconfig and the client configuration
// for the port that was chosen.
func (e *Env) useURL() error {
	e.URL = "https://" + net.JoinHostPort(e.address, strconv.Itoa(e.port))
	e.Kubeconfig = filepath.Join(e.dir, "kubeconfig")
	if err := e.pki.Kubeconfig(e.Kubeconfig, e.URL, "admin"); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", e.Kubeconfig)
	if err != nil {
		return fmt.Errorf("read back kubeconfig: %w", err)
	}
	config.QPS = -1 // no client-side limit: tests should measure the server
	e.config = config
	return nil
}

// Config is a client configuration of a cluster administrator; each call
// returns a copy that the caller may change.
func (e *Env) Config() *rest.Config { return rest.CopyConfig(e.config) }

// PIDs are the processes that run now, by program.
func (e *Env) PIDs() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	pids := map[string]int{}
	for _, p := range []*process.Program{e.etcd, e.apiserver, e.controllers} {
		if pid := p.PID(); pid != 0 {
			pids[p.Name] = pid
		}
	}
	return pids
}

// StartAPIServer starts the API server on its port and waits until it is
// ready. It is an error to call it while one runs.
func (e *Env) StartAPIServer(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.apiserver.PID() != 0 {
		return errors.New("start API server: one is running")
	}
	p, err := e.launch(e.assets.apiserver, e.apiserverFlags()...)
	if err != nil {
		return err
	}
	e.apiserver = p
	clients, err := kubernetes.NewForConfig(e.config)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	err = ready(ctx, p, func(ctx context.Context) error {
		_, err := clients.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	})
	if err != nil {
		return errors.Join(err, p.Stop(ctx))
	}
	return nil
}

// KillAPIServer ends the API server with SIGKILL and waits for its end. etcd
// keeps what it holds.
func (e *Env) KillAPIServer() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.apiserver.Kill()
}

// StopAPIServer ends the API server and waits for its end. etcd keeps what it
// holds, so StartAPIServer brings everything back.
func (e *Env) StopAPIServer() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.apiserver.Stop(context.Background())
}

// Stop ends every process it started, by its id, waits for their end, and
// removes what Start made outside a folder the caller named. It may be called
// twice.
func (e *Env) Stop() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	// Clients first, so that none logs the absence of its server.
	patient := context.Background()
	errs := []error{e.controllers.Stop(patient), e.apiserver.Stop(patient), e.etcd.Stop(patient)}
	for _, dir := range e.scratch {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

func waitUntil(ctx context.Context, t time.Time) error {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the CRDs to be usable: %w", ctx.Err())
	}
}
