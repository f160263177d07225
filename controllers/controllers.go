// Package controllers is the operator: it sets up every controller of the binary and the
// options of their manager.
//
// It owns what is common to all of them: scheme, cache, indexes, rate limits. It has no
// logic: each reconciler has a package, reconcilers never import one another, and they
// share package fleet and conditions.
//
// Start reading at Setup.
package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"metalfleet.dev/metalfleet/api/join"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/api/watched"
	"metalfleet.dev/metalfleet/controllers/agentupgrade"
	"metalfleet.dev/metalfleet/controllers/autoscaler"
	"metalfleet.dev/metalfleet/controllers/autoscaler/demand"
	"metalfleet.dev/metalfleet/controllers/autoscaler/external"
	"metalfleet.dev/metalfleet/controllers/autoscaler/keda"
	"metalfleet.dev/metalfleet/controllers/autoscaler/scale"
	"metalfleet.dev/metalfleet/controllers/fleet"
	"metalfleet.dev/metalfleet/controllers/hubtoken"
	"metalfleet.dev/metalfleet/controllers/identity"
	"metalfleet.dev/metalfleet/controllers/internal/fairqueue"
	"metalfleet.dev/metalfleet/controllers/internal/hubsecret"
	"metalfleet.dev/metalfleet/controllers/internal/signal"
	"metalfleet.dev/metalfleet/controllers/macclass"
	"metalfleet.dev/metalfleet/controllers/macnode"
	"metalfleet.dev/metalfleet/controllers/modeldeployment"
	"metalfleet.dev/metalfleet/controllers/modelreplica"
	"metalfleet.dev/metalfleet/controllers/namespacerules"
	"metalfleet.dev/metalfleet/controllers/placement"
	"metalfleet.dev/metalfleet/controllers/uninstall"
)

// Permissions of the program itself: its namespace and leader election.
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch;create
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// DefaultNamespace holds the operator's own objects and those of each Mac.
const DefaultNamespace = "metalfleet-system"

// DefaultCertificateLife of Macs and gateways; certificates are renewed after 70 % of it.
const DefaultCertificateLife = 24 * time.Hour

// LongestCertificateLife is the maximum.
const LongestCertificateLife = identity.LongestLife

// DefaultGatewayService is the Service of the gateways.
const DefaultGatewayService = autoscaler.DefaultService

// DefaultKEDANamespace is the namespace of KEDA.
const DefaultKEDANamespace = keda.DefaultNamespace

// DefaultAuthoritySpread is how long gateways have to read a new root before it signs.
const DefaultAuthoritySpread = time.Hour

// Config is what the controllers need in addition to the manager.
type Config struct {
	// Namespace of Leases, Secrets and ServiceAccounts.
	Namespace string
	// Version of the operator.
	Version string
	// Clock of all controllers.
	Clock clock.WithTicker
	// CertificateLife is the maximum validity of a certificate of a Mac or a gateway.
	CertificateLife time.Duration
	// AuthoritySpread is how long gateways have to read a new root before it signs.
	AuthoritySpread time.Duration
	// RequireRules has nothing new placed while there are no NamespaceRules.
	RequireRules bool
	// DemandAddress receives the reports of gateways; empty or "0" disables it, and
	// autoscaling with it.
	DemandAddress string
	// GatewayService is the Service of the gateways; empty means DefaultGatewayService.
	GatewayService string
	// GatewayURL is the base URL of the gateways for clients in the cluster; empty means that
	// of GatewayService. PublicURL is that for clients outside of it; empty: there is none.
	GatewayURL, PublicURL string
	// MetricsAPIAddress serves external metrics to the API server; empty or "0" disables
	// it.
	MetricsAPIAddress string
	// KEDAAddress serves figures to KEDA; empty or "0" disables it. KEDANamespace has the
	// Secret with KEDA's client certificate.
	KEDAAddress, KEDANamespace string
	// Metrics receives the operator's own metrics.
	Metrics prometheus.Registerer
}

// gatewayURL returns the base URL of the gateways for clients in the cluster.
func (c Config) gatewayURL() string {
	service := cmp.Or(c.GatewayService, DefaultGatewayService)
	return cmp.Or(c.GatewayURL, "http://"+service+"."+c.Namespace+".svc/v1")
}

// Scheme returns the kinds that the operator reads and writes.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(v1alpha1.AddToScheme(s))
	return s
}

// ManagerOptions returns the manager's options: a cache without Secrets of other
// namespaces, and reads that see our own writes, which counting each thing once depends on.
// Models are read in the watched namespaces; none means all.
func ManagerOptions(namespace string, namespaces ...string) ctrl.Options {
	return ctrl.Options{
		Scheme: Scheme(),
		Cache:  cacheOptions(namespace, namespaces),
		Client: client.Options{Cache: &client.CacheOptions{EnableReadYourWritesConsistency: ptr.To(true)}},
		NewCache: func(config *rest.Config, o cache.Options) (cache.Cache, error) {
			return watched.NewCache(config, o, namespaces...)
		},
	}
}

func cacheOptions(namespace string, namespaces []string) cache.Options {
	here := map[string]cache.Config{namespace: {}}
	var models map[string]cache.Config // nil reads all namespaces
	for _, name := range namespaces {
		if models == nil {
			models = map[string]cache.Config{}
		}
		models[name] = cache.Config{}
	}
	repeated, specs := newParts(), newSpecRoom()
	return cache.Options{
		DefaultTransform: bare,
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Namespaces: here},
			// The guard against uninstalling; there are few others.
			&corev1.ConfigMap{}:      {Namespaces: here},
			&corev1.ServiceAccount{}: {Namespaces: here},
			&rbacv1.Role{}:           {Namespaces: here},
			&rbacv1.RoleBinding{}:    {Namespaces: here},
			&coordinationv1.Lease{}:  {Namespaces: here},
			// The gateways' Services; there are few others.
			&discoveryv1.EndpointSlice{}: {Namespaces: here},
			&rbacv1.ClusterRole{}:        {Label: having(v1alpha1.LabelMac)},
			&rbacv1.ClusterRoleBinding{}: {Label: having(v1alpha1.LabelMac)},
			&v1alpha1.ModelDeployment{}:  {Namespaces: models, Transform: specs.slim},
			&v1alpha1.ModelReplica{}:     {Namespaces: models, Transform: repeated.share},
			&v1alpha1.MacAssignment{}:    {Transform: repeated.share},
			&appsv1.ControllerRevision{}: {Namespaces: models, Label: having(v1alpha1.LabelDeployment), Transform: specs.slim},
			// Requests for other signers are not ours.
			&certificatesv1.CertificateSigningRequest{}: {Field: fields.OneTermEqualSelector("spec.signerName", join.Signer)},
		},
	}
}

// bare drops the metadata of an object that nothing reads, and that may be as long as etcd stores. Of the managedFields
// of a MacNode it leaves who wrote this version, if that counts.
func bare(in any) (any, error) {
	mac, isMac := in.(*v1alpha1.MacNode)
	writer := ""
	if isMac {
		writer = identity.WrittenBy(mac)
	}
	if o, ok := in.(client.Object); ok {
		o.SetManagedFields(nil)
		o.SetGenerateName("")
	}
	if isMac {
		if writer != "" {
			mac.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: writer}}
		}
		kept := map[string]string{}
		for _, key := range []string{v1alpha1.AnnotationLost, v1alpha1.AnnotationEnrolledKey} {
			if value := mac.Annotations[key]; value != "" && len(value) <= maxAnnotation {
				kept[key] = value
			}
		}
		mac.Annotations = kept
	}
	return in, nil
}

// maxAnnotation is the length of an annotation of a Mac: those that are read are a word, or a fingerprint.
const maxAnnotation = 256

func having(label string) labels.Selector {
	r, err := labels.NewRequirement(label, selection.Exists, nil)
	utilruntime.Must(err)
	return labels.NewSelector().Add(*r)
}

// options of every controller. New work is never delayed, namespaces take turns, and failures are
// retried soon, then with backoff.
func options(concurrent int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: concurrent,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](10*time.Millisecond, 30*time.Second),
		ReconciliationTimeout:   time.Minute,
		NewQueue:                fairqueue.New,
	}
}

// setupDemand sets up the reports of gateways and the autoscaler at the leader.
func setupDemand(mgr ctrl.Manager, c Config, issuer *identity.Issuer, metrics *signal.Metrics) (*autoscaler.Reconciler, error) {
	ledger := demand.NewLedger(c.Clock.Now)
	ledger.Exists = func(key types.NamespacedName) bool {
		var d v1alpha1.ModelDeployment // of the cache: read only
		return mgr.GetClient().Get(context.Background(), key, &d, client.DisableReadYourWritesConsistency, client.UnsafeDisableDeepCopy) == nil
	}
	scaler := autoscaler.New(mgr.GetClient(), c.Clock, c.Namespace, ledger, metrics)
	scaler.Service = cmp.Or(c.GatewayService, scaler.Service)
	if err := metrics.Demand(c.Metrics, ledger.Gateways, scale.Changes()...); err != nil {
		return nil, err
	}
	if c.DemandAddress == "" || c.DemandAddress == "0" {
		return scaler, nil
	}
	server := &identity.Server{Issuer: issuer}
	err := mgr.Add(&demand.Server{Ledger: ledger, Address: c.DemandAddress, TLS: server.TLS, Urgent: scaler.Urgent, Log: mgr.GetLogger().WithName("demand")})
	if err != nil {
		return nil, fmt.Errorf("reports of gateways: %w", err)
	}
	source := &external.Source{Client: mgr.GetClient(), Figures: scaler.Figures, Now: c.Clock.Now}
	return scaler, errors.Join(setupExternal(mgr, c, issuer, source), setupKEDA(mgr, c, issuer, source))
}

// directClient returns a client without a cache. That of the manager watches each kind that it
// writes, which is impossible for a review and needs further permissions for an APIService, and reads
// Secrets of one namespace only.
func directClient(mgr ctrl.Manager) (client.Client, error) {
	return client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient()})
}

// setupExternal serves external metrics to the API server, for deployments that are scaled
// from outside.
func setupExternal(mgr ctrl.Manager, c Config, issuer *identity.Issuer, source *external.Source) error {
	if c.MetricsAPIAddress == "" || c.MetricsAPIAddress == "0" {
		return nil
	}
	direct, err := directClient(mgr)
	if err != nil {
		return fmt.Errorf("client for external metrics: %w", err)
	}
	log := mgr.GetLogger().WithName("external")
	vouched := &external.Vouched{Live: mgr.GetAPIReader(), Now: c.Clock.Now}
	own := &identity.Server{Issuer: issuer, Name: external.ServiceName(c.Namespace)}
	handler := &external.Handler{Source: *source, Allow: vouched.Caller, May: external.Reviewed(direct), Log: log}
	err = mgr.Add(&external.Server{Handler: handler, Vouched: vouched, Address: c.MetricsAPIAddress, Certificate: own.Certificate, Authority: own.Authority,
		Client: direct, Log: log})
	if err != nil {
		return fmt.Errorf("external metrics: %w", err)
	}
	return nil
}

// setupKEDA serves the same figures to KEDA.
func setupKEDA(mgr ctrl.Manager, c Config, issuer *identity.Issuer, source *external.Source) error {
	if c.KEDAAddress == "" || c.KEDAAddress == "0" {
		return nil
	}
	direct, err := directClient(mgr)
	if err != nil {
		return fmt.Errorf("client for KEDA's Secret: %w", err)
	}
	log := mgr.GetLogger().WithName("keda")
	own := &identity.Server{Issuer: issuer, Name: keda.ServiceName(c.Namespace)}
	pass := &keda.Pass{Client: direct, Namespace: c.KEDANamespace, Authority: own.Authority, Clock: c.Clock}
	scaler := &keda.Scaler{Source: source, Clock: c.Clock}
	err = errors.Join(mgr.Add(&keda.Server{Scaler: scaler, Pass: pass, Address: c.KEDAAddress, Certificate: own.Certificate, Log: log}),
		mgr.Add(&keda.Keeper{Pass: pass, Log: log}))
	if err != nil {
		return fmt.Errorf("metrics for KEDA: %w", err)
	}
	return nil
}

// Setup adds every controller of the operator to the manager.
func Setup(ctx context.Context, mgr ctrl.Manager, c Config) error {
	if err := fleet.AddIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	metrics, err := signal.New(c.Metrics, mgr.GetClient())
	if err != nil {
		return err
	}
	issuer := &identity.Issuer{Client: mgr.GetClient(), Namespace: c.Namespace, Clock: c.Clock, Life: c.CertificateLife}
	secrets := &hubsecret.Reader{Live: mgr.GetAPIReader(), Clock: c.Clock}
	inspectors := &fleet.Inspectors{Now: c.Clock.Now}
	scaler, err := setupDemand(mgr, c, issuer, metrics)
	if err != nil {
		return err
	}
	for _, x := range []struct {
		name       string
		concurrent int
		reconciler interface {
			SetupWithManager(ctrl.Manager, controller.Options) error
		}
	}{
		{"modeldeployment", 4, &modeldeployment.Reconciler{Client: mgr.GetClient(), Clock: c.Clock, Secrets: secrets, Inspectors: inspectors, URL: c.gatewayURL(), PublicURL: c.PublicURL}},
		{"modelreplica", 4, &modelreplica.Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: c.Clock}},
		{"placement", 1, &placement.Reconciler{Client: mgr.GetClient(), RequireRules: c.RequireRules, Clock: c.Clock}},
		{"namespace rules", 1, &namespacerules.Reconciler{Client: mgr.GetClient(), Clock: c.Clock}},
		{"classes of Macs", 1, &macclass.Reconciler{Client: mgr.GetClient(), Clock: c.Clock}},
		{"macnode heartbeat", 2, &macnode.Heartbeat{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Namespace: c.Namespace, Clock: c.Clock, Reach: scaler.Ledger.Reach}},
		{"macnode orders", 2, &macnode.Orders{Client: mgr.GetClient(), Clock: c.Clock, Grants: issuer, Inspectors: inspectors, Sites: new(fleet.Sites)}},
		{"macnode deletion", 2, &macnode.Deletion{Client: mgr.GetClient(), Clock: c.Clock}},
		{"macnode alarms", 1, &macnode.Alerts{Client: mgr.GetClient(), Clock: c.Clock}},
		{"macnode reclaims", 1, &macnode.Reclaims{Client: mgr.GetClient(), Clock: c.Clock, Metrics: metrics}},
		{"hub tokens of Macs", 2, hubtoken.New(mgr.GetClient(), secrets, c.Namespace)},
		{"identity of Macs", 2, &identity.Macs{Client: mgr.GetClient(), Issuer: issuer}},
		{"identity requests", 2, &identity.Requests{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Issuer: issuer}},
		{"enrolments", 1, &identity.Enrolments{Client: mgr.GetClient(), Issuer: issuer}},
		{"enrolment requests", 1, &identity.EnrolmentRequests{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Issuer: issuer}},
		{"autoscaler", 2, scaler},
		{"agent upgrade", 1, &agentupgrade.Reconciler{Client: mgr.GetClient(), Version: c.Version, Clock: c.Clock}},
		{"uninstall guard", 1, &uninstall.Reconciler{Client: mgr.GetClient(), Namespace: c.Namespace}},
		{"identity of gateways", 1, &identity.Gateway{Issuer: issuer}},
		{"rotation of the authority", 1, &identity.Rotation{Client: mgr.GetClient(), Issuer: issuer, Spread: c.AuthoritySpread, Metrics: metrics}},
	} {
		if err := x.reconciler.SetupWithManager(mgr, options(x.concurrent)); err != nil {
			return fmt.Errorf("controller %s: %w", x.name, err)
		}
	}
	return mgr.Add(&CatchUp{Client: mgr.GetClient(), Every: catchUpEvery, Patience: catchUpPatience})
}
