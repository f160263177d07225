package gateway_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/gateway"
	"metalfleet.dev/metalfleet/gateway/keys"
)

const keysNamespace = "metalfleet-api-keys"

// asked returns the status of a request with a key.
func (f *front) asked(token string) int {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), "POST", f.url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"x","stream":true}`))
	if err != nil {
		f.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// apply creates a key in a namespace, with administrator permissions.
func (c *cluster) apply(namespace, name string, g keys.Grant) (*corev1.Secret, string) {
	c.t.Helper()
	secret, token, err := keys.NewSecret(namespace, name, g)
	if err != nil {
		c.t.Fatal(err)
	}
	c.create(secret)
	return secret, token
}

// TestKeysComeFromOneNamespaceAndFollowTheCluster runs with the permissions of config/rbac
// on a real API server.
func TestKeysComeFromOneNamespaceAndFollowTheCluster(t *testing.T) {
	c := newCluster(t)
	close(c.hold)
	c.create(c.secret())
	c.serve()
	f := c.start(time.Second, func(o *gateway.Options) { o.KeysNamespace = keysNamespace })
	c.eventually("the gateway answers", func() bool { return f.asked("") == 503 })
	if got := f.readyz(); got == http.StatusOK {
		t.Error("ready without the right to read keys")
	}
	c.applyRights("gateway-api-keys.yaml")
	c.eventually("ready", func() bool { return f.readyz() == 200 })
	if got := f.asked(""); got != 401 {
		t.Errorf("without a key: %d", got)
	}

	all := keys.Grant{Models: []string{"*"}}
	secret, token := c.apply(keysNamespace, "app", all)
	c.eventually("a new key opens", func() bool { return f.asked(token) == 200 })
	_, tenants := c.apply("default", "app", all)
	other := secret.DeepCopy()
	other.ResourceVersion, other.UID = "", ""
	other.Name, other.Type = "opaque", corev1.SecretTypeOpaque
	c.create(other)
	_, last := c.apply(keysNamespace, "last", all)
	c.eventually("a later key opens", func() bool { return f.asked(last) == 200 })
	if got := f.asked(tenants); got != 401 {
		t.Errorf("a tenant's own Secret grants a model: %d", got)
	}

	t.Run("API server away", func(t *testing.T) {
		if err := c.env.StopAPIServer(); err != nil {
			t.Fatal(err)
		}
		if got := f.asked(token); got != 200 {
			t.Errorf("a key while the API server is away: %d", got)
		}
		if err := c.env.StartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	if err := c.client.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	c.eventually("a revoked key opens nothing", func() bool { return f.asked(token) == 401 })
	if got := f.asked(last); got != 200 {
		t.Errorf("another key noticed: %d", got)
	}
}

// TestAttackTheGatewaysRights: with a compromised gateway one can read the hashes of keys
// and its own identity, no other Secret, and write none.
func TestAttackTheGatewaysRights(t *testing.T) {
	c := newCluster(t)
	c.applyRights("gateway-api-keys.yaml")
	for _, tc := range []struct {
		verb, namespace, name string
		want                  bool
	}{
		{verb: "list", namespace: keysNamespace, want: true},
		{verb: "watch", namespace: keysNamespace, want: true},
		{verb: "get", namespace: namespace, name: "metalfleet-gateway", want: true},
		{verb: "list", namespace: namespace, want: false},
		{verb: "get", namespace: namespace, name: "metalfleet-ca", want: false},
		{verb: "get", namespace: namespace, name: "mac-studio", want: false},
		{verb: "list", namespace: "default", want: false},
		{verb: "list", want: false},
		{verb: "create", namespace: keysNamespace, want: false},
		{verb: "update", namespace: keysNamespace, name: "app", want: false},
		{verb: "delete", namespace: keysNamespace, name: "app", want: false},
		{verb: "update", namespace: namespace, name: "metalfleet-gateway", want: false},
	} {
		allowed := func() bool {
			review := &authorizationv1.SubjectAccessReview{ObjectMeta: metav1.ObjectMeta{}, Spec: authorizationv1.SubjectAccessReviewSpec{
				User: "system:serviceaccount:" + namespace + ":metalfleet-gateway", Groups: []string{"system:serviceaccounts", "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: tc.verb, Namespace: tc.namespace, Resource: "secrets", Name: tc.name},
			}}
			c.create(review)
			return review.Status.Allowed
		}
		switch {
		case tc.want: // the API server learns of roles by a watch, and refuses everything until then
			c.eventually(fmt.Sprintf("it may %s secrets %q in %q", tc.verb, tc.name, tc.namespace), allowed)
		case allowed():
			t.Errorf("it may %s secrets %q in %q", tc.verb, tc.name, tc.namespace)
		}
	}
}
