package controllers_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers"
	"metalfleet.dev/metalfleet/test/patience"
	"metalfleet.dev/metalfleet/test/testenv"
)

// testLimit bounds one test with all its waits.
const testLimit = 8 * time.Minute

// cluster is the API server with the namespace of one test.
type cluster struct {
	t   *testing.T
	ctx context.Context
	c   client.WithWatch
	ns  string
}

// newCluster creates a namespace, as the administrator of the cluster.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	t.Cleanup(cancel)
	c, err := client.NewWithWatch(env.Config(), client.Options{Scheme: controllers.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	cl := &cluster{t: t, ctx: ctx, c: c}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	cl.must(c.Create(ctx, ns))
	cl.ns = ns.Name
	return cl
}

func (cl *cluster) must(err error) {
	cl.t.Helper()
	if err != nil {
		cl.t.Fatal(err)
	}
}

// eventually retries until there is no error.
func (cl *cluster) eventually(what string, complaint func() error) {
	cl.t.Helper()
	limit := patience.Of(cl.t)
	if err := cl.within(limit, complaint); err != nil {
		cl.t.Fatalf("%s: not within %s: %v", what, limit, err)
	}
}

func (cl *cluster) within(d time.Duration, complaint func() error) error {
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	pause := 10 * time.Millisecond
	for {
		err := complaint()
		if err == nil {
			return nil
		}
		select {
		case <-deadline.C:
			return err
		case <-time.After(pause):
		}
		// A check costs the API server as much as the work that is awaited.
		pause = min(2*pause, 100*time.Millisecond)
	}
}

func wantReason(conditions []metav1.Condition, kind, reason string) error {
	c := meta.FindStatusCondition(conditions, kind)
	if c == nil {
		return fmt.Errorf("no condition %s", kind)
	}
	if c.Reason != reason {
		return fmt.Errorf("%s=%s, reason %s (%s), want %s", kind, c.Status, c.Reason, c.Message, reason)
	}
	return nil
}

// change changes an object that others may write as well: it retries on conflicts.
func (cl *cluster) change(o client.Object, do func()) {
	cl.t.Helper()
	key := client.ObjectKeyFromObject(o)
	cl.eventually(fmt.Sprintf("change %T %s", o, key), func() error {
		reflect.ValueOf(o).Elem().SetZero() // nothing of an earlier try
		if err := cl.c.Get(cl.ctx, key, o); err != nil {
			return err
		}
		do()
		return cl.c.Update(cl.ctx, o)
	})
}

// wake makes the operator look at an object before its own timers do. It ignores conflicts
// and deleted objects.
func (cl *cluster) wake(o client.Object) {
	cl.t.Helper()
	woken := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"woken":"yes"}}}`))
	cl.must(client.IgnoreNotFound(cl.c.Patch(cl.ctx, o, woken)))
}

func message(conditions []metav1.Condition, kind string) string {
	if c := meta.FindStatusCondition(conditions, kind); c != nil {
		return c.Message
	}
	return ""
}

func wantContains(t *testing.T, what, got string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(got, p) {
			t.Errorf("%s: %q does not contain %q", what, got, p)
		}
	}
}

// gone returns an error while an object exists.
func (cl *cluster) gone(o client.Object) error {
	err := cl.c.Get(cl.ctx, client.ObjectKeyFromObject(o), o)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err == nil:
		return fmt.Errorf("%T %s is there, finalizers %v", o, o.GetName(), o.GetFinalizers())
	}
	return err
}

// kubectl runs the real program and returns its output.
func (cl *cluster) kubectl(args ...string) string {
	cl.t.Helper()
	assets, err := testenv.AssetsDir()
	cl.must(err)
	cmd := exec.CommandContext(cl.ctx, filepath.Join(assets, "kubectl"), append([]string{"--kubeconfig", env.Kubeconfig}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		cl.t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// versions returns the resourceVersions of everything that the operator could write.
func (cl *cluster) versions() map[string]string {
	cl.t.Helper()
	out := map[string]string{}
	for _, list := range []client.ObjectList{&v1alpha1.ModelDeploymentList{}, &v1alpha1.ModelReplicaList{}, &v1alpha1.MacNodeList{},
		&appsv1.ControllerRevisionList{}, &corev1.SecretList{}, &corev1.ServiceAccountList{}, &rbacv1.RoleList{}, &rbacv1.RoleBindingList{},
		&rbacv1.ClusterRoleList{}, &rbacv1.ClusterRoleBindingList{}, &corev1.EventList{}} {
		cl.must(cl.c.List(cl.ctx, list))
		cl.must(meta.EachListItem(list, func(o runtimeObject) error {
			m, err := meta.Accessor(o)
			if err != nil {
				return err
			}
			if !slices.Contains([]string{"", metav1.NamespaceDefault, system, cl.ns}, m.GetNamespace()) {
				return nil // another test's terminating namespace
			}
			out[fmt.Sprintf("%T %s/%s", o, m.GetNamespace(), m.GetName())] = m.GetResourceVersion()
			return nil
		}))
	}
	return out
}

// stillness is how long nothing must change for the operator to be considered idle on a
// busy machine.
const stillness = 3 * time.Second

// settled waits until nothing changed for a while, and returns the versions.
func (cl *cluster) settled(quiet time.Duration) map[string]string {
	cl.t.Helper()
	last, since := cl.versions(), time.Now()
	cl.eventually("the fleet is quiet", func() error {
		now := cl.versions()
		if !maps.Equal(last, now) {
			last, since = now, time.Now()
		}
		if time.Since(since) < quiet {
			return errors.New("something changed lately")
		}
		return nil
	})
	return last
}

func (cl *cluster) wantUnchanged(before map[string]string, when string) {
	cl.t.Helper()
	after := cl.settled(time.Second)
	for _, k := range slices.Sorted(maps.Keys(after)) {
		if before[k] != after[k] {
			cl.t.Errorf("%s: %s was written", when, k)
		}
	}
	for k := range before {
		if _, has := after[k]; !has {
			cl.t.Errorf("%s: %s is gone", when, k)
		}
	}
}

// asAgent returns a client with a token of a Mac's ServiceAccount.
func (cl *cluster) asAgent(mac string) client.WithWatch {
	cl.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: v1alpha1.AgentObjectName(mac)}}
	token := &authenticationv1.TokenRequest{}
	cl.eventually("the account of "+mac+" gives a token", func() error { return cl.c.SubResource("token").Create(cl.ctx, account, token) })
	return cl.as(token.Status.Token)
}

// as returns a client with any token.
func (cl *cluster) as(token string) client.WithWatch {
	cl.t.Helper()
	config := rest.AnonymousClientConfig(env.Config())
	config.BearerToken = token
	c, err := client.NewWithWatch(config, client.Options{Scheme: controllers.Scheme(), Mapper: cl.c.RESTMapper()})
	cl.must(err)
	return c
}

// secretOf reads the TLS material of a Secret.
func (cl *cluster) secretOf(name string) (tls.Certificate, *x509.CertPool, *corev1.Secret) {
	cl.t.Helper()
	var s corev1.Secret
	cl.eventually("Secret "+name, func() error { return cl.c.Get(cl.ctx, client.ObjectKey{Namespace: system, Name: name}, &s) })
	pair, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
	cl.must(err)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(s.Data["ca.crt"]) {
		cl.t.Fatalf("Secret %s holds no ca.crt", name)
	}
	return pair, roots, &s
}

// createForTest creates an object that is not in the namespace of the test, and deletes it
// at the end.
func (cl *cluster) createForTest(o client.Object) {
	cl.t.Helper()
	cl.must(cl.c.Create(cl.ctx, o))
	cl.t.Cleanup(func() { _ = cl.c.Delete(context.Background(), o) })
}
