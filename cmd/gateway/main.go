// Command gateway is the OpenAI-compatible entry point of a fleet of Macs. It runs in the
// cluster, with any number of replicas behind one Service.
//
// It owns its flags and signals only: package gateway is the program.
//
// Start reading at run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	stdlog "log"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc/grpclog"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/logs"
	"metalfleet.dev/metalfleet/api/tracing"
	"metalfleet.dev/metalfleet/gateway"
	"metalfleet.dev/metalfleet/gateway/fairqueue"
	"metalfleet.dev/metalfleet/gateway/heap"
	"metalfleet.dev/metalfleet/gateway/maclogs"
	"metalfleet.dev/metalfleet/gateway/pick"
	"metalfleet.dev/metalfleet/gateway/proxy"
)

const (
	// traceTime is how long the last traces may take.
	traceTime = 5 * time.Second
	// heapShare is the share of a container's memory limit for the heap. Of the chart's 1 GiB,
	// requests and connections take 320 MiB and responses 128 MiB at most, and 88 MiB more where
	// clients do not read them; the kernel takes 256 MiB at most for connections of clients.
	heapShare = 0.6
)

// version is set by the linker.
var version = "unversioned"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1)
	}
}

type flags struct {
	kubeconfig, namespace, keysNamespace, listen, health, metrics, operator, tunnels, logs string
	drain, tryTimeout, requestTimeout                                                      time.Duration
	connections, connectionsPerAddress                                                     int
	waiting                                                                                fairqueue.Limits
	pick                                                                                   pick.Policy
	strictFields, accessLog, keepAttribution, verbose, version                             bool
	origins, watch                                                                         []string
	format                                                                                 logs.Format
	traces                                                                                 tracing.Flags
}

func parse(args []string, out io.Writer) (flags, error) {
	var f flags
	set := flag.NewFlagSet("gateway", flag.ContinueOnError)
	set.SetOutput(out)
	set.StringVar(&f.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig `file` for the API server; not needed inside a cluster")
	set.StringVar(&f.namespace, "namespace", namespace(), "namespace of the Secret metalfleet-gateway")
	set.StringVar(&f.keysNamespace, "api-keys-namespace", "", "require an API key from clients; the keys are the Secrets in this `namespace`, which must contain no other Secrets")
	set.Func("watch-namespaces", "comma-separated `namespaces` whose models are served; by default those of all", func(list string) error {
		f.watch = strings.Split(list, ",")
		return nil
	})
	set.StringVar(&f.listen, "listen", ":8080", "`address` that clients connect to")
	set.StringVar(&f.health, "health", ":8081", "`address` of /healthz and /readyz")
	set.StringVar(&f.metrics, "metrics", ":8082", "`address` of /metrics, which needs TLS and the bearer token of an account that may get it; open on a loopback address")
	set.StringVar(&f.operator, "operator", "", "`HOST:PORT` of the operator, which receives the demand for each model for autoscaling; the host name may resolve to several addresses")
	set.StringVar(&f.tunnels, "tunnels", "", "`address` for tunnels from Macs that gateways cannot reach; empty disables tunnels")
	set.StringVar(&f.logs, "logs", "", "loopback `address` at which those who may forward ports of this Pod read the logs of Macs; empty serves none")
	set.DurationVar(&f.drain, "drain-timeout", 5*time.Minute, "time for running requests to finish after SIGTERM")
	set.IntVar(&f.connections, "max-connections", 4096, "maximum `number` of client connections, an eighth more for addresses with few; 0 means no limit")
	set.IntVar(&f.connectionsPerAddress, "max-connections-per-address", 2048, "maximum `number` of connections of one address (for IPv6, a /64); 0 means no limit")
	set.IntVar(&f.waiting.Count, "queue-requests", 1000, "maximum number of requests that wait for a replica; 0 refuses requests that find none")
	set.Int64Var(&f.waiting.Bytes, "queue-bytes", 64<<20, "maximum `bytes` of the bodies of all waiting requests together")
	set.DurationVar(&f.waiting.Age, "queue-timeout", 5*time.Minute, "how long a request may wait, unless its client sets a shorter time in X-Metalfleet-Timeout")
	set.DurationVar(&f.tryTimeout, "try-timeout", 0, "how long a replica may take to begin its response before the gateway tries another one; 0 means no limit")
	set.DurationVar(&f.requestTimeout, "request-timeout", 0, "how long a request may take in total; 0 means no limit")
	f.pick = pick.Choose
	set.Func("pick", "how to choose a replica: prefix (the one that served requests with the same prefix, unless it is much busier; the default), least-load or round-robin", func(name string) (err error) {
		f.pick, err = pick.PolicyNamed(name)
		return err
	})
	set.BoolVar(&f.strictFields, "strict-fields", false, "refuse request fields that have no effect, instead of ignoring them and naming them in X-Metalfleet-Ignored")
	set.BoolVar(&f.accessLog, "access-log", false, "log each request when it ends: API key, client address, model, status, tokens and time, never its text")
	set.BoolVar(&f.keepAttribution, "keep-attribution", false, "leave the block x-anthropic-billing-header of Anthropic's clients in the system prompt, which differs from session to session and defeats the prefix cache")
	set.Func("cors-origins", "comma-separated `origins` of web pages that may use the API from a browser, such as https://chat.example.com, or * for all", func(list string) (err error) {
		f.origins, err = proxy.ParseOrigins(list)
		return err
	})
	set.BoolVar(&f.verbose, "verbose", false, "log debug messages")
	set.Var(&f.format, "log-format", logs.Usage)
	f.traces.Bind(set)
	set.BoolVar(&f.version, "version", false, "print the version and exit")
	if err := set.Parse(args); err != nil {
		return f, err
	}
	if set.NArg() > 0 {
		return f, fmt.Errorf("unexpected argument %q; gateway takes flags only", set.Arg(0))
	}
	return f, f.check()
}

// check rejects invalid combinations and values of flags.
func (f flags) check() error {
	for name, d := range map[string]time.Duration{"drain-timeout": f.drain, "try-timeout": f.tryTimeout, "request-timeout": f.requestTimeout} {
		if d < 0 {
			return fmt.Errorf("--%s %s is negative", name, d)
		}
	}
	if f.connections < 0 || f.connectionsPerAddress < 0 {
		return fmt.Errorf("--max-connections %d or --max-connections-per-address %d is negative", f.connections, f.connectionsPerAddress)
	}
	if w := f.waiting; w.Count < 0 || w.Count > 0 && (w.Bytes < 1 || w.Age <= 0) {
		return fmt.Errorf("--queue-requests %d with --queue-bytes %d and --queue-timeout %s lets no request wait; set --queue-requests=0 to disable waiting", w.Count, w.Bytes, w.Age)
	}
	if _, _, err := net.SplitHostPort(f.operator); f.operator != "" && err != nil {
		return fmt.Errorf("--operator %s is not HOST:PORT: %w", f.operator, err)
	}
	if f.keysNamespace != "" && f.keysNamespace == f.namespace {
		return fmt.Errorf("--api-keys-namespace %s is the gateway's own namespace: anyone who can write keys there could also replace its identity; use another namespace", f.keysNamespace)
	}
	return f.traces.Check()
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "check" {
		return check(ctx, args[1:], stdout, stderr)
	}
	if len(args) > 0 && args[0] == "new-key" {
		return newKey(args[1:], time.Now(), stdout, stderr)
	}
	f, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if f.version {
		_, err := fmt.Fprintln(stdout, "gateway", version)
		return err
	}
	log := newLogger(stderr, f.verbose, f.format)
	klog.SetLogger(log)
	ctrllog.SetLogger(log)
	logs.TakeStandard(slog.New(logr.ToSlogHandler(log.WithName("standard"))))
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, stdlog.Writer())) // a peer can cause any number of its lines
	config, err := restConfig(f.kubeconfig)
	if err != nil {
		return err
	}
	heap.Keep(ctx, heapShare)
	tracer, err := f.traces.New("metalfleet-gateway", version, log)
	if err != nil {
		return err
	}
	o, err := f.open()
	if err != nil {
		return err
	}
	o.Tracer = tracer
	log.Info("Gateway started", "version", version, "listen", o.Front.Addr().String(), "health", o.Health.Addr().String())
	o.REST, o.Namespace, o.Watch, o.KeysNamespace, o.Log = config, f.namespace, f.watch, f.keysNamespace, log
	o.Origins, o.Operator, o.Connections, o.ConnectionsPerAddress, o.Waiting, o.Pick = f.origins, f.operator, f.connections, f.connectionsPerAddress, f.waiting, f.pick
	o.TryTimeout, o.RequestTimeout, o.Drain = f.tryTimeout, f.requestTimeout, f.drain
	o.StrictFields, o.AccessLog, o.KeepAttribution = f.strictFields, f.accessLog, f.keepAttribution
	err = gateway.Run(ctx, o)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceTime)
	defer cancel()
	return errors.Join(err, tracer.Close(ending))
}

// open opens all listeners, or none.
func (f flags) open() (o gateway.Options, err error) {
	var opened []net.Listener
	for _, l := range []struct {
		to                  *net.Listener
		flag, address, what string
		listen              func(address string) (net.Listener, error)
	}{
		{to: &o.Front, flag: "listen", address: f.listen, what: "clients", listen: intake.Listen},
		{to: &o.Health, flag: "health", address: f.health, what: "probes", listen: intake.Listen},
		{to: &o.Metrics, flag: "metrics", address: f.metrics, what: "scrapes", listen: intake.Listen},
		{to: &o.Tunnels, flag: "tunnels", address: f.tunnels, what: "tunnels", listen: intake.Listen},
		{to: &o.Logs, flag: "logs", address: f.logs, what: "readers of logs", listen: maclogs.Listen},
	} {
		if l.address == "" && (l.to == &o.Tunnels || l.to == &o.Logs) {
			continue
		}
		if *l.to, err = l.listen(l.address); err != nil {
			err = fmt.Errorf("listen for %s (--%s): %w", l.what, l.flag, err)
			for _, other := range opened {
				err = errors.Join(err, other.Close())
			}
			return gateway.Options{}, err
		}
		opened = append(opened, *l.to)
	}
	return o, nil
}

func newLogger(to io.Writer, verbose bool, format logs.Format) logr.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	return logr.FromSlogHandler(format.Handler(to, level))
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("not inside a cluster; set --kubeconfig: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kubeconfig, err)
	}
	return config, nil
}

// namespace returns the namespace of the pod, or the default one outside a cluster.
func namespace() string {
	b, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil || len(b) == 0 {
		return "metalfleet-system"
	}
	return strings.TrimSpace(string(b))
}
