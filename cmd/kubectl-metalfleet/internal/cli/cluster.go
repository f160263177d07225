package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// fieldManager of what the plugin writes.
const fieldManager = "kubectl-metalfleet"

// defaultSystem is the namespace that the chart's documents name.
const defaultSystem = "metalfleet-system"

// clusterFlags are kubectl's own, by client-go: which file, which context,
// which namespace, whom to be.
type clusterFlags struct {
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
	system     string
}

func (f *clusterFlags) bind(to *pflag.FlagSet) {
	to.StringVar(&f.kubeconfig, clientcmd.RecommendedConfigPathFlag, "", "path of the kubeconfig file; default: $KUBECONFIG, otherwise ~/.kube/config")
	to.StringVar(&f.system, "system-namespace", defaultSystem, "namespace in which metalfleet is installed")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ContextOverrideFlags.Namespace.ShortName = "n"
	clientcmd.BindOverrideFlags(&f.overrides, to, names)
}

// cluster is an API server, as a command sees it.
type cluster struct {
	client.WithWatch
	config    *rest.Config
	namespace string
}

func scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(v1alpha1.AddToScheme(s))
	return s
}

// connect reads the kubeconfig; nothing is asked yet.
func (a *app) connect() (*cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.flags.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &a.flags.overrides)
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no API server configured; set --kubeconfig or --context: %w", err)
	}
	// The API server's own priority and fairness limits us.
	config.QPS = -1
	config.UserAgent = "kubectl-metalfleet/" + a.Version
	// What the API server wishes to warn of, such as in a dry run, goes to the person.
	config.WarningHandler = rest.NewWarningWriter(a.Err, rest.WarningWriterOptions{Deduplicate: true})
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, fmt.Errorf("namespace of the context: %w", err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme()})
	if err != nil {
		return nil, a.apiError("connect to "+config.Host, err)
	}
	return &cluster{WithWatch: c, config: config, namespace: namespace}, nil
}

// apiError explains an error of the API server, with the next step.
func (a *app) apiError(did string, err error) error {
	var network net.Error
	var address *url.Error
	switch {
	case err == nil:
		return nil
	case meta.IsNoMatchError(err):
		return fmt.Errorf("%s: metalfleet is not installed in this cluster; install the chart, or select another cluster with --context: %w", did, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s: permission denied: %w; ask your administrator for access", did, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: authentication failed: %w; log in again, or select another user with --context", did, err)
	case errors.As(err, &address), errors.As(err, &network):
		return fmt.Errorf("%s: the API server is unreachable: %w; check --context", did, err)
	default:
		return fmt.Errorf("%s: %w", did, err)
	}
}

// fleetObjects are all Macs and all replicas.
func (a *app) fleetObjects(ctx context.Context, c client.Reader) ([]v1alpha1.MacNode, []v1alpha1.ModelReplica, error) {
	var macs v1alpha1.MacNodeList
	if err := c.List(ctx, &macs); err != nil {
		return nil, nil, a.apiError("list Macs", err)
	}
	var replicas v1alpha1.ModelReplicaList
	if err := c.List(ctx, &replicas); err != nil {
		return nil, nil, a.apiError("list replicas", err)
	}
	return macs.Items, replicas.Items, nil
}

// mac reads one Mac.
func (a *app) mac(ctx context.Context, c client.Reader, name string) (*v1alpha1.MacNode, error) {
	var mac v1alpha1.MacNode
	err := c.Get(ctx, client.ObjectKey{Name: name}, &mac)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no Mac %q; `kubectl metalfleet nodes` lists all Macs", name)
	}
	if err != nil {
		return nil, a.apiError("read Mac "+name, err)
	}
	return &mac, nil
}

// deployment reads the one that a person names: NAMESPACE/NAME, a name in the
// namespace of the context, or a name that clients use.
func (a *app) deployment(ctx context.Context, c *cluster, named string) (*v1alpha1.ModelDeployment, error) {
	namespace, name, qualified := strings.Cut(named, "/")
	if !qualified {
		namespace, name = c.namespace, named
	}
	var d v1alpha1.ModelDeployment
	err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &d)
	if err == nil {
		return &d, nil
	}
	if !apierrors.IsNotFound(err) {
		return nil, a.apiError("read deployment "+namespace+"/"+name, err)
	}
	if qualified {
		return nil, fmt.Errorf("ModelDeployment %s/%s does not exist; `kubectl get mdep -A` lists all deployments", namespace, name)
	}
	owner, err := a.ownerOf(ctx, c, named)
	if err != nil {
		return nil, err
	}
	if owner == nil {
		return nil, fmt.Errorf("no ModelDeployment in namespace %[2]q has the name %[1]q, and none serves it; "+
			"`kubectl get mdep -A` lists all deployments; use NAMESPACE/NAME for another namespace", named, namespace)
	}
	return owner, nil
}

// ownerOf finds the deployment that clients reach by a name; nil: none.
func (a *app) ownerOf(ctx context.Context, c client.Reader, served string) (*v1alpha1.ModelDeployment, error) {
	var all v1alpha1.ModelDeploymentList
	if err := c.List(ctx, &all); apierrors.IsForbidden(err) {
		return nil, nil // who may read one namespace alone still uses that one
	} else if err != nil {
		return nil, a.apiError("list deployments", err)
	}
	for i := range all.Items {
		for _, name := range all.Items[i].Status.ServedNames {
			if name == served {
				return &all.Items[i], nil
			}
		}
	}
	return nil, nil
}
