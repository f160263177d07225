package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/testenv"
)

// cluster is the control plane, and what an administrator does with it.
type cluster struct {
	// Client has the rights of a cluster administrator.
	Client client.WithWatch
	// Env is the control plane.
	Env *testenv.Env
}

// installConfig applies what an administrator installs with the CRDs: the
// system namespace, the service accounts and the RBAC in config/rbac. It leaves out
// config/policy, as the chart does with tenants.open and macs.allowLocalAddresses:
// there is one tenant, and its Macs are on this machine.
func (c *cluster) installConfig(ctx context.Context, root string) error {
	if err := c.createNamespace(ctx, Namespace); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(root, "config", "rbac", "*.yaml"))
	if err != nil {
		return fmt.Errorf("config/rbac: %w", err)
	}
	if len(files) == 0 {
		return errors.New("config/rbac holds no YAML; `make generate` writes it")
	}
	sort.Strings(files)
	for _, file := range files {
		if err := c.applyFile(ctx, file); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) applyFile(ctx context.Context, file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	objects, err := decode(b)
	if err != nil {
		return fmt.Errorf("apply %s: %w", file, err)
	}
	for _, o := range objects {
		if o.GetKind() == "Kustomization" {
			continue // a recipe for kustomize, not an object
		}
		apply := client.ApplyConfigurationFromUnstructured(o)
		if err := c.Client.Apply(ctx, apply, client.FieldOwner("fleet"), client.ForceOwnership); err != nil {
			return fmt.Errorf("apply %s %s of %s: %w", o.GetKind(), o.GetName(), file, err)
		}
	}
	return nil
}

// decode reads the objects of a YAML file; empty documents are left out.
func decode(b []byte) ([]*unstructured.Unstructured, error) {
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(b), 4096)
	var out []*unstructured.Unstructured
	for {
		o := &unstructured.Unstructured{}
		switch err := d.Decode(&o.Object); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, err
		case len(o.Object) > 0:
			out = append(out, o)
		}
	}
}

// kubeconfigOf writes a kubeconfig with a token of a ServiceAccount in the
// system namespace. It waits until the account exists,
// or the operator, which makes it, has failed.
func (c *cluster) kubeconfigOf(ctx context.Context, account, path string, failed func() error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, Ready, fmt.Errorf("not within %s", Ready))
	defer cancel()
	seconds := int64(tokenSeconds)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	var died error
	err := Poll(ctx, 20*time.Millisecond, "ServiceAccount "+account+" gives a token", func(ctx context.Context) error {
		if died = failed(); died != nil {
			return nil
		}
		sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: account}}
		return c.Client.SubResource("token").Create(ctx, sa, request)
	})
	if err := errors.Join(died, err); err != nil {
		return err
	}
	return c.writeKubeconfig(path, request.Status.Token)
}

func (c *cluster) writeKubeconfig(path, token string) error {
	admin := c.Env.Config()
	config := clientcmdapi.NewConfig()
	config.Clusters["local"] = &clientcmdapi.Cluster{Server: c.Env.URL, CertificateAuthorityData: admin.CAData}
	config.AuthInfos["account"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["local"] = &clientcmdapi.Context{Cluster: "local", AuthInfo: "account", Namespace: Namespace}
	config.CurrentContext = "local"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	return nil
}

// createNamespace makes one, and is content with one that exists.
func (c *cluster) createNamespace(ctx context.Context, name string) error {
	err := c.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("namespace %s: %w", name, err)
	}
	return nil
}

func newClient(e *testenv.Env) (client.WithWatch, error) {
	log.SetLogger(logr.Discard()) // else the library asks for one, on the terminal, after 30 s
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("kinds: %w", err)
	}
	c, err := client.NewWithWatch(e.Config(), client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return c, nil
}
