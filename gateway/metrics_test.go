package gateway_test

import (
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/gateway"
)

// elsewhere is a listener whose address is not on the loopback interface.
type elsewhere struct{ net.Listener }

func (elsewhere) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 8082} }

// account creates a ServiceAccount with a token, bound to a role or to none.
func (c *cluster) account(name, role string) string {
	c.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	c.create(account)
	if role != "" {
		c.create(&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}}})
	}
	token := &authenticationv1.TokenRequest{}
	if err := c.client.SubResource("token").Create(c.t.Context(), account, token); err != nil {
		c.t.Fatal(err)
	}
	return token.Status.Token
}

// TestAttackMetricsWithoutAnAccount: from other machines, only accounts with RBAC
// permission can read metrics.
func TestAttackMetricsWithoutAnAccount(t *testing.T) {
	c := newCluster(t)
	c.applyRights("people.yaml")
	reader, tenant := c.account("prometheus", "metalfleet-metrics-reader"), c.account("tenant", "")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := c.start(time.Second, func(o *gateway.Options) {
		_ = o.Metrics.Close()
		o.Metrics = elsewhere{Listener: l}
	})
	over := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer over.CloseIdleConnections()
	get := func(url, token string) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+l.Addr().String()+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := over.Do(r)
		if err != nil {
			return 0
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	c.eventually("an allowed account reads metrics", func() bool { return get("https://", reader) == 200 })
	for name, tc := range map[string]struct {
		url, token string
		want       int
	}{
		"no token": {url: "https://", want: 401}, "an invented token": {url: "https://", token: strings.Repeat("x", 20), want: 401}, "another account": {url: "https://", token: tenant, want: 403}, "without TLS": {url: "http://", token: reader, want: 400},
	} {
		if got := get(tc.url, tc.token); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
	if resp, err := http.Get(f.health + "/metrics"); err != nil || resp.StatusCode != http.StatusNotFound {
		t.Errorf("the port of probes has metrics: %v", err)
	} else {
		resp.Body.Close()
	}
}
