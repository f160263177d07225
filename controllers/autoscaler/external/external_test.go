package external

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	metrics "k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"metalfleet.dev/metalfleet/api/agentapi/agentapitest"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/autoscaler/demand"
	"metalfleet.dev/metalfleet/controllers/fleet/fleettest"
)

func scheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return s
}

func deployment(name string, scales bool) *v1alpha1.ModelDeployment {
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	if scales {
		d.Spec.Autoscaling = &v1alpha1.AutoscalingSpec{MaxReplicas: 3}
	}
	return d
}

// handler has two deployments, and one with spec.autoscaling.
func handler(t *testing.T) *Handler {
	return &Handler{Source: Source{
		Client: fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(deployment("chat", false), deployment("code", false), deployment("own", true)).Build(),
		Figures: func(_ context.Context, of types.NamespacedName) (demand.Figures, string, error) {
			if of.Name == "code" {
				return demand.Figures{Running: 9}, "1 of 2 gateways have stopped reporting", nil
			}
			return demand.Figures{Running: 3, Waiting: 4, Oldest: 1500 * time.Millisecond}, "", nil
		},
		Now: time.Now},
		Allow: func(*http.Request) (Caller, error) { return Caller{name: "hpa"}, nil },
		May:   func(context.Context, Caller, string, string) error { return nil },
		Log:   logr.Discard(),
	}
}

func ask(h http.Handler, path string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// A request reads one namespace and copies none of its deployments, which may have large specs.
func TestFiguresAreReadWithoutCopies(t *testing.T) {
	h := handler(t)
	c, unchanged := fleettest.Sharing(t, h.Client.(client.WithWatch))
	h.Client = c
	if code, body := ask(h, root+"/namespaces/ns/"+Requests+"?labelSelector=deployment%3Dchat"); code != http.StatusOK {
		t.Errorf("%d: %s", code, body)
	}
	unchanged()
}

func TestFiguresOfADeployment(t *testing.T) {
	h := handler(t)
	for metric, want := range map[string]string{Requests: "7", QueueSeconds: "1500m"} {
		code, body := ask(h, root+"/namespaces/ns/"+metric+"?labelSelector=deployment%3Dchat")
		var list metrics.ExternalMetricValueList
		if err := json.Unmarshal([]byte(body), &list); err != nil || code != 200 {
			t.Fatal(code, body, err)
		}
		if len(list.Items) != 1 || list.Items[0].Value.String() != want || list.Items[0].MetricLabels[label] != "chat" || list.Items[0].Timestamp.IsZero() {
			t.Errorf("%s: %s", metric, body)
		}
	}
	code, body := ask(h, root)
	if code != 200 || !strings.Contains(body, Requests) || !strings.Contains(body, QueueSeconds) {
		t.Errorf("discovery: %d %s", code, body)
	}
}

// No incomplete figures, no zero for what does not exist, none for spec.autoscaling.
func TestFiguresAreWholeOrRefused(t *testing.T) {
	h := handler(t)
	for name, c := range map[string]struct {
		path string
		code int
		says string
	}{
		"a part":             {path: "/namespaces/ns/" + Requests + "?labelSelector=deployment%3Dcode", code: 503, says: "1 of 2 gateways have stopped reporting"},
		"one of two a part":  {path: "/namespaces/ns/" + Requests + "?labelSelector=deployment%20in%20(chat,code)", code: 503, says: "is incomplete"},
		"a misspelt name":    {path: "/namespaces/ns/" + Requests + "?labelSelector=deployment%3Dchta", code: 404, says: "chta"},
		"another namespace":  {path: "/namespaces/other/" + Requests + "?labelSelector=deployment%3Dchat", code: 404, says: "chat"},
		"scales itself":      {path: "/namespaces/ns/" + QueueSeconds + "?labelSelector=deployment%3Down", code: 409, says: "remove spec.autoscaling"},
		"no such metric":     {path: "/namespaces/ns/requests", code: 404, says: "requests"},
		"no namespace":       {path: "/" + Requests, code: 404},
		"no selector at all": {path: "/namespaces/ns/" + Requests + "?labelSelector=%3D%3D", code: 400, says: "labelSelector"},
		"a long selector":    {path: "/namespaces/ns/" + Requests + "?labelSelector=deployment%20in%20(chat" + strings.Repeat(",a", 2048) + ")", code: 400, says: "at most"},
		"many requirements":  {path: "/namespaces/ns/" + Requests + "?labelSelector=deployment%3Dchat" + strings.Repeat(",!a", 8), code: 400, says: "at most"},
	} {
		code, body := ask(h, root+c.path)
		var status metav1.Status
		if err := json.Unmarshal([]byte(body), &status); err != nil || code != c.code || int(status.Code) != c.code || status.Kind != "Status" || !strings.Contains(status.Message, c.says) {
			t.Errorf("%s: %d %s, %v", name, code, body, err)
		}
	}
}

// TestAReaderThatLeavesEndsTheSearch: a namespace may have thousands of deployments.
func TestAReaderThatLeavesEndsTheSearch(t *testing.T) {
	h := handler(t)
	ctx, leave := context.WithCancel(t.Context())
	h.Source.Figures = func(context.Context, types.NamespacedName) (f demand.Figures, part string, err error) {
		leave()
		return f, "", nil
	}
	if _, err := h.values(ctx, "ns", Requests, labels.Everything()); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that of the context", err)
	}
}

func TestWhoMayNotReadIsRefused(t *testing.T) {
	h := handler(t)
	h.May = func(_ context.Context, u Caller, namespace, metric string) error {
		if u.name != "hpa" || namespace != "ns" || metric != Requests {
			t.Errorf("%+v asks for %s in %s", u, metric, namespace)
		}
		return errReview
	}
	if code, _ := ask(h, root+"/namespaces/ns/"+Requests+"?labelSelector=deployment%3Dchat"); code != 500 {
		t.Errorf("without a word of the API server: %d", code)
	}
}

func TestTheAPIServerSaysWhoMayRead(t *testing.T) {
	answer := authorizationv1.SubjectAccessReviewStatus{}
	var asked authorizationv1.SubjectAccessReviewSpec
	c := fake.NewClientBuilder().WithScheme(scheme(t)).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
			r := o.(*authorizationv1.SubjectAccessReview)
			asked, r.Status = r.Spec, answer
			return nil
		}}).Build()
	may := Reviewed(c)
	who := Caller{name: "jane", groups: []string{"team"}}
	for _, x := range []struct{ allowed, denied, want bool }{{}, {allowed: true, want: true}, {allowed: true, denied: true}} {
		answer.Allowed, answer.Denied = x.allowed, x.denied
		if err := may(t.Context(), who, "ns", Requests); (err == nil) != x.want {
			t.Errorf("%+v: %v", x, err)
		}
	}
	if a := asked.ResourceAttributes; asked.User != "jane" || len(asked.Groups) != 1 || a.Namespace != "ns" || a.Resource != Requests || a.Verb != "list" || a.Group != metrics.GroupName {
		t.Errorf("asked for %+v, %+v", asked, a)
	}
}

// The user headers are trusted only with the API server's own certificate.
func TestAttackWhoIsNoAPIServerNamesNobody(t *testing.T) {
	ca, other := agentapitest.NewCA(t), agentapitest.NewCA(t)
	proxy := func(of *agentapitest.CA, name string, usage x509.ExtKeyUsage) *x509.Certificate {
		p := of.Forged(func(c *x509.Certificate) {
			c.Subject = pkix.Name{CommonName: name}
			c.ExtKeyUsage = []x509.ExtKeyUsage{usage}
		})
		block, _ := pem.Decode(p.Certificate)
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	v := &Vouched{Now: time.Now, Live: fake.NewClientBuilder().WithScheme(scheme(t)).WithObjects(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: trustNamespace, Name: trustName},
		Data:       map[string]string{keyCA: string(ca.PEM()), keyNames: `["front-proxy"]`, keyUser: `["X-Remote-User"]`, keyGroup: `["X-Remote-Group"]`, keyExtra: `["X-Remote-Extra-"]`},
	}).Build()}
	const client, server = x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth
	for name, c := range map[string]struct {
		leaf *x509.Certificate
		user string
		ok   bool
	}{
		"the API server":            {leaf: proxy(ca, "front-proxy", client), user: "jane", ok: true},
		"it says no name":           {leaf: proxy(ca, "front-proxy", client)},
		"another name":              {leaf: proxy(ca, "kubelet", client), user: "jane"},
		"another authority":         {leaf: proxy(other, "front-proxy", client), user: "jane"},
		"a server's certificate":    {leaf: proxy(ca, "front-proxy", server), user: "jane"},
		"no certificate and a name": {user: "jane"},
	} {
		r := httptest.NewRequest(http.MethodGet, root, nil)
		r.Header.Set("X-Remote-User", c.user)
		r.Header["X-Remote-Group"] = []string{"a", "b"}
		r.Header.Set("X-Remote-Extra-Scopes.example.com%2fx", "s")
		if c.leaf != nil {
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.leaf}}
		}
		u, err := v.Caller(r)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if c.ok && (u.name != "jane" || len(u.groups) != 2 || len(u.extra["scopes.example.com/x"]) != 1) {
			t.Errorf("%s: %+v", name, u)
		}
	}
}

func TestAnAPIServerThatHandsNothingOnIsNotBelieved(t *testing.T) {
	for name, data := range map[string]map[string]string{
		"no authority": {keyUser: `["X-Remote-User"]`},
		"no header":    {keyCA: string(agentapitest.NewCA(t).PEM())},
		"torn":         {keyCA: string(agentapitest.NewCA(t).PEM()), keyUser: `["X-Remote`},
	} {
		if _, err := parseTrust(data); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestStrangersSendNoRequestsToTheAPIServer: while it does not say whom to trust, handshakes
// share one request a second, which ends with no client.
func TestStrangersSendNoRequestsToTheAPIServer(t *testing.T) {
	reads, now := 0, time.Now()
	v := &Vouched{Now: func() time.Time { return now }, Live: interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme(t)).Build(), interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
			reads++
			if ctx.Err() != nil {
				t.Error("the request ends with the client that left")
			}
			return errors.New("away")
		}})}
	left, leave := context.WithCancel(t.Context())
	leave()
	for range 3 {
		if _, err := v.current(left); err == nil {
			t.Error("there is nothing to trust")
		}
	}
	if now = now.Add(retryEach); reads != 1 {
		t.Errorf("%d requests for three handshakes", reads)
	}
	if _, err := v.current(left); err == nil || reads != 2 {
		t.Errorf("a second later: %v after %d requests", err, reads)
	}
}
