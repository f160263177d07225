// Command operator runs all controllers of metalfleet against one API server.
//
// It owns flags, signals, leader election, health and metrics; the controllers are listed
// in package controllers. It does not start if the CRDs are not installed or its namespace
// cannot be used, and explains the next step.
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
	_ "time/tzdata" // the image has none

	"github.com/go-logr/logr"
	"google.golang.org/grpc/grpclog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"metalfleet.dev/metalfleet/api/demand"
	"metalfleet.dev/metalfleet/api/logs"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers"
	"metalfleet.dev/metalfleet/gateway/heap"
)

// version is set when the program is linked.
var version = "unversioned"

// Leader election. A pause of the API server shorter than the renew deadline has no effect;
// after a longer one the program restarts itself. Nothing in the data path waits for a
// leader, but failover does: a Mac's silence is counted only while there is a leader, so
// the successor of a killed operator has to lead well before a Mac would be called silent.
// An operator that stops regularly releases its Lease.
const (
	leaderLease   = 15 * time.Second
	leaderRenew   = 10 * time.Second
	leaderRetry   = 2 * time.Second
	leaderElector = "metalfleet-operator"
)

// settleTimeout is how long a responding API server may lack our CRDs and deny requests:
// one that has just started learns of CRDs and roles a moment later.
const settleTimeout = 5 * time.Second

// heapShare is the share of a container's memory limit for the heap.
const heapShare = 0.85

// errEnded means that the manager ended unasked, for example when it lost the leadership. Its
// goroutines may still be ending, so only a new process image may start again.
var errEnded = errors.New("the manager ended")

type settings struct {
	kubeconfig, namespace string
	health, metrics       string
	demand, metricsAPI    string
	keda, kedaNamespace   string
	gatewayService        string
	gatewayURL, publicURL string
	leaderElect, version  bool
	verbose, requireRules bool
	format                logs.Format
	lease, renew, retry   time.Duration
	certificateLife       time.Duration
	authoritySpread       time.Duration
	watch                 []string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case err != nil:
		os.Exit(2) // the flag package has printed the error
	case s.version:
		fmt.Println("operator", version)
		return
	}
	err = run(ctx, logger(s.verbose, s.format), s)
	if errors.Is(err, errEnded) {
		fmt.Fprintln(os.Stderr, "operator: restarting:", err)
		err = startOver()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "operator:", err)
		stop()
		os.Exit(1)
	}
}

// startOver re-executes the program.
func startOver() error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	return fmt.Errorf("restart %s: %w", program, syscall.Exec(program, os.Args, os.Environ()))
}

func parse(args []string, out io.Writer) (settings, error) {
	var s settings
	f := flag.NewFlagSet("operator", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&s.kubeconfig, "kubeconfig", "", "path of the kubeconfig file; default: $KUBECONFIG, otherwise the Pod's service account")
	f.StringVar(&s.namespace, "namespace", controllers.DefaultNamespace, "namespace for the objects of the operator and of each Mac; created if it does not exist")
	f.Func("watch-namespaces", "comma-separated `namespaces` whose ModelDeployments are served; by default those of all", func(list string) error {
		s.watch = strings.Split(list, ",")
		return nil
	})
	f.StringVar(&s.health, "health-bind-address", ":8081", "address for /healthz and /readyz; 0 disables them")
	f.StringVar(&s.metrics, "metrics-bind-address", ":8080", "address for /metrics, which needs TLS and the bearer token of an account that may get it; open on a loopback address; 0 disables it")
	f.StringVar(&s.demand, "demand-bind-address", fmt.Sprintf(":%d", demand.DefaultPort), "address on which the leading operator receives reports of demand from gateways, for autoscaling; 0 disables it")
	f.StringVar(&s.gatewayURL, "gateway-url", "", "base `URL` of the API in the cluster (default: http://SERVICE.NAMESPACE.svc/v1)")
	f.StringVar(&s.publicURL, "public-url", "", "base `URL` of the API outside of the cluster (default: none)")
	f.StringVar(&s.gatewayService, "gateway-service", controllers.DefaultGatewayService, "Service of the gateways in --namespace, whose ready endpoints have to report their demand")
	f.StringVar(&s.metricsAPI, "metrics-api-bind-address", "0", "address for external metrics of deployments, which the API server requests for a HorizontalPodAutoscaler; 0 disables it; requires --demand-bind-address")
	f.StringVar(&s.keda, "keda-bind-address", "0", "address of the external scaler for KEDA; 0 disables it; requires --demand-bind-address")
	f.StringVar(&s.kedaNamespace, "keda-namespace", controllers.DefaultKEDANamespace, "namespace of KEDA, where the Secret with its client certificate is stored")
	f.BoolVar(&s.leaderElect, "leader-elect", true, "elect a leader with a Lease, so that several operators can run; only the leader acts")
	f.DurationVar(&s.lease, "leader-elect-lease-duration", leaderLease, "how long other operators wait for a silent leader before they take over")
	f.DurationVar(&s.renew, "leader-elect-renew-deadline", leaderRenew, "how long a leader that cannot renew its Lease continues to act; must be less than the lease duration")
	f.DurationVar(&s.retry, "leader-elect-retry-period", leaderRetry, "interval between attempts to acquire or renew the Lease")
	f.DurationVar(&s.certificateLife, "certificate-life", controllers.DefaultCertificateLife, "lifetime of the certificates of Macs and gateways, 10m to 2160h; renewed after 70 % of it")
	f.DurationVar(&s.authoritySpread, "authority-spread", controllers.DefaultAuthoritySpread, "how long gateways have to read a new root certificate before it signs, 10s to 24h")
	f.BoolVar(&s.requireRules, "require-namespace-rules", false, "place no new replica while there are no NamespaceRules")
	f.BoolVar(&s.verbose, "verbose", false, "log details for debugging")
	f.Var(&s.format, "log-format", logs.Usage)
	f.BoolVar(&s.version, "version", false, "print the version and exit")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if f.NArg() > 0 {
		fmt.Fprintf(out, "operator: unexpected argument %q; all settings are flags\n", f.Arg(0))
		return s, errors.New("unexpected argument")
	}
	if err := s.checkFigures(out); err != nil {
		return s, err
	}
	return s, s.checkAuthority(out)
}

// checkFigures rejects flags that serve figures without receiving any.
func (s settings) checkFigures(out io.Writer) error {
	if off(s.demand) && !(off(s.metricsAPI) && off(s.keda)) {
		fmt.Fprintln(out, "operator: --metrics-api-bind-address and --keda-bind-address require --demand-bind-address, on which gateways report the demand")
		return errors.New("demand reports are disabled")
	}
	if !off(s.keda) && s.kedaNamespace == "" {
		fmt.Fprintln(out, "operator: --keda-namespace is empty; name the namespace of KEDA")
		return errors.New("no namespace of KEDA")
	}
	return nil
}

func (s settings) checkAuthority(out io.Writer) error {
	if s.certificateLife < 10*time.Minute || s.certificateLife > controllers.LongestCertificateLife {
		fmt.Fprintf(out, "operator: --certificate-life is %s, want 10m to 2160h\n", s.certificateLife)
		return errors.New("life out of range")
	}
	if s.authoritySpread < 10*time.Second || s.authoritySpread > 24*time.Hour {
		fmt.Fprintf(out, "operator: --authority-spread is %s, want 10s to 24h\n", s.authoritySpread)
		return errors.New("spread out of range")
	}
	return nil
}

// logger returns the logger of the whole process, including libraries.
func logger(verbose bool, format logs.Format) logr.Logger {
	log := newLogger(os.Stderr, verbose, format)
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	logs.TakeStandard(slog.New(logr.ToSlogHandler(log.WithName("standard"))))
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, stdlog.Writer())) // a peer can cause any number of its lines
	return log
}

// newLogger writes one line for each record, and quotes foreign text.
func newLogger(to io.Writer, verbose bool, format logs.Format) logr.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	return logr.FromSlogHandler(format.Handler(to, level))
}

// run starts the manager and returns when it has ended.
func run(ctx context.Context, log logr.Logger, s settings) error {
	config, err := restConfig(s.kubeconfig)
	if err != nil {
		return err
	}
	heap.Keep(ctx, heapShare)
	if err := prepare(ctx, log, config, s.namespace); err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, managerOptions(s))
	if err != nil {
		return fmt.Errorf("manager: %w", err)
	}
	err = controllers.Setup(ctx, mgr, controllers.Config{
		Namespace: s.namespace, Version: version, Clock: clock.RealClock{}, CertificateLife: s.certificateLife,
		AuthoritySpread: s.authoritySpread, Metrics: metrics.Registry, DemandAddress: s.demand, GatewayService: s.gatewayService, GatewayURL: s.gatewayURL, PublicURL: s.publicURL, MetricsAPIAddress: s.metricsAPI,
		RequireRules: s.requireRules, KEDAAddress: s.keda, KEDANamespace: s.kedaNamespace,
	})
	if err != nil {
		return err
	}
	if err := servePorts(mgr, config, s); err != nil {
		return err
	}
	log.Info("Operator starts", "version", version, "namespace", s.namespace)
	return start(ctx, mgr)
}

// start runs the manager, and distinguishes an end after it led from a failed start.
func start(ctx context.Context, mgr ctrl.Manager) error {
	err := mgr.Start(ctx)
	if err == nil || ctx.Err() != nil {
		return nil // the context has ended
	}
	select {
	case <-mgr.Elected():
		return fmt.Errorf("%w: %w", errEnded, err)
	default:
		return fmt.Errorf("start: %w", err)
	}
}

func managerOptions(s settings) ctrl.Options {
	o := controllers.ManagerOptions(s.namespace, s.watch...)
	o.Metrics.BindAddress, o.HealthProbeBindAddress = "0", "0" // see servePorts
	o.LeaderElection = s.leaderElect
	o.LeaderElectionID = leaderElector
	o.LeaderElectionNamespace = s.namespace
	o.LeaderElectionReleaseOnCancel = true
	o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = &s.lease, &s.renew, &s.retry
	return o
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no API server configured; set --kubeconfig: %w", err)
	}
	// The API server's own priority and fairness limits us; a limit in the client only adds delay.
	config.QPS = -1
	config.UserAgent = "metalfleet-operator/" + version
	return config, nil
}

// prepare waits for the API server and checks the prerequisites of the controllers.
func prepare(ctx context.Context, log logr.Logger, config *rest.Config, namespace string) error {
	config = rest.CopyConfig(config)
	config.Timeout = 5 * time.Second
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var answered time.Time
	for waits := false; ; {
		err := check(ctx, config, namespace)
		switch {
		case unsettled(err) && (answered.IsZero() || time.Since(answered) < settleTimeout):
			if answered.IsZero() {
				answered = time.Now()
			}
		case unreachable(err):
			answered = time.Time{}
			if !waits {
				waits = true
				log.Info("Waiting for the API server", "host", config.Host, "reason", err.Error())
			}
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stopped while waiting for the API server: %w", err)
		case <-tick.C:
		}
	}
}

// unsettled reports whether an API server may return the error only because it is starting.
func unsettled(err error) bool {
	return errors.Is(err, errNoKinds) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsInternalError(err)
}

// unreachable reports whether there was no response, or one that the API server is
// unavailable.
func unreachable(err error) bool {
	var answer apierrors.APIStatus
	var network net.Error
	switch {
	case err == nil:
		return false
	case errors.As(err, &answer):
		return apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err)
	default:
		return errors.As(err, &network)
	}
}

// errNoKinds means that the CRDs are not installed.
var errNoKinds = errors.New("the CRDs of metalfleet are not installed; run `kubectl apply -f config/crd` first")

func check(ctx context.Context, config *rest.Config, namespace string) error {
	c, err := client.New(config, client.Options{Scheme: controllers.Scheme()})
	if err != nil {
		return fmt.Errorf("client for %s: %w", config.Host, err)
	}
	err = c.List(ctx, &v1alpha1.MacNodeList{}, client.Limit(1))
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return fmt.Errorf("API server %s: %w", config.Host, errNoKinds)
	}
	if err != nil {
		return fmt.Errorf("list MacNodes on %s: %w", config.Host, err)
	}
	return ensureNamespace(ctx, c, namespace)
}

func ensureNamespace(ctx context.Context, c client.Client, name string) error {
	var ns corev1.Namespace
	err := c.Get(ctx, client.ObjectKey{Name: name}, &ns)
	if apierrors.IsNotFound(err) {
		ns = corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		err = c.Create(ctx, &ns)
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("namespace %s, which holds Leases and Secrets, cannot be used: %w; create it with `kubectl create namespace %s` and grant the rights in config/rbac", name, err, name)
	case !ns.DeletionTimestamp.IsZero():
		return fmt.Errorf("namespace %s is being deleted; wait until the deletion has finished, or set another one with --namespace", name)
	}
	return nil
}
