package hops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/patience"
)

func mac(ready metav1.ConditionStatus) client.Object {
	return &v1alpha1.MacNode{ObjectMeta: metav1.ObjectMeta{Name: "studio"},
		Status: v1alpha1.MacNodeStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: ready}}}}
}

func deployment(name string, available metav1.ConditionStatus) client.Object {
	return &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: "apps", Name: name},
		Status: v1alpha1.ModelDeploymentStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionAvailable, Status: available}}}}
}

// answering is a healthy gateway; it records the requested models.
func answering(asked *[]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"object":"list","data":[]}`)
			return
		}
		var q struct {
			Model  string `json:"model"`
			Tokens int    `json:"max_tokens"`
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.Tokens != 1 {
			http.Error(w, "asked for more than one token", http.StatusBadRequest)
			return
		}
		*asked = append(*asked, q.Model)
		if q.Model == "apps/mute" {
			fmt.Fprint(w, `{"usage":{"completion_tokens":0}}`)
			return
		}
		fmt.Fprint(w, `{"usage":{"completion_tokens":1}}`)
	}
}

// locked is a gateway that requires the key "good".
func locked(asked *[]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer good" {
			_ = openai.WriteError(w, openai.Unauthorized())
			return
		}
		answering(asked)(w, r)
	}
}

func broken(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, `{"error":{"message":"not ready yet"}}`, http.StatusServiceUnavailable)
}

func garbage(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>a proxy</html>") }

// nowhere is a resolver that reaches no server.
var nowhere = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no server") }}

func TestTheHopThatFailsIsNamed(t *testing.T) {
	yes, no := metav1.ConditionTrue, metav1.ConditionFalse
	var asked []string
	for name, c := range map[string]struct {
		url     string
		gateway http.HandlerFunc
		model   string
		key     string
		objects []client.Object
		hop     string
		want    string
	}{
		"the name is not known":        {url: "http://gateway.invalid", hop: "DNS", want: "kube-dns"},
		"no one listens":               {url: "http://127.0.0.1:1", hop: "gateway", want: "logs"},
		"the gateway is not ready":     {gateway: broken, hop: "gateway", want: "not ready yet"},
		"another server answers":       {gateway: garbage, hop: "gateway", want: "not JSON"},
		"no Mac has joined":            {gateway: answering(&asked), hop: "Mac", want: "none of 0"},
		"no Mac is ready":              {gateway: answering(&asked), objects: []client.Object{mac(no)}, hop: "Mac", want: "none of 1"},
		"no model is ready":            {gateway: answering(&asked), objects: []client.Object{mac(yes), deployment("a", no)}, hop: "model", want: "describe mdep"},
		"a model that answers nothing": {gateway: answering(&asked), model: "apps/mute", objects: []client.Object{mac(yes)}, hop: "model", want: "no token"},
		"no model at all":              {gateway: answering(&asked), objects: []client.Object{mac(yes)}, want: "no request was sent"},
		"a key is wanted":              {gateway: locked(&asked), objects: []client.Object{mac(yes), deployment("a", yes)}, want: "requires an API key"},
		"no key to ask a model with":   {gateway: locked(&asked), objects: []client.Object{mac(yes), deployment("a", yes)}, want: "METALFLEET_API_KEY is not set"},
		"a key that is not good":       {gateway: locked(&asked), key: "bad", objects: []client.Object{mac(yes)}, hop: "gateway", want: "API key is missing or invalid"},
		"a key that is good":           {gateway: locked(&asked), key: "good", objects: []client.Object{mac(yes), deployment("a", yes)}, want: "apps/a answered"},
		"all is well":                  {gateway: answering(&asked), objects: []client.Object{mac(yes), deployment("a", no), deployment("b", yes)}, want: "apps/b answered"},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := v1alpha1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			if c.gateway != nil {
				s := httptest.NewServer(c.gateway)
				defer s.Close()
				c.url = s.URL
			}
			reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(c.objects...).Build()
			walk := func(limit time.Duration) error {
				asked = nil
				var out strings.Builder
				err := Walk(t.Context(), Options{URL: c.url, Model: c.model, Key: c.key, Patience: limit, Out: &out, Resolver: nowhere, Reader: reader})
				var failed *Error
				if errors.As(err, &failed) != (c.hop != "") || c.hop == "" && err != nil || failed != nil && failed.Hop != c.hop {
					return fmt.Errorf("error %w, want one of hop %q", err, c.hop)
				}
				if output := fmt.Sprint(out.String(), err); !strings.Contains(output, c.want) {
					return fmt.Errorf("output %q, want %q", output, c.want)
				}
				if name == "all is well" && (len(asked) != 1 || asked[0] != "apps/b") {
					return fmt.Errorf("asked %v", asked)
				}
				return nil
			}
			// A failing hop is retried for the whole patience. A busy machine may need more
			// than the test allows, so the limit grows until it was enough.
			limit := 100 * time.Millisecond
			err := walk(limit)
			for ; err != nil && limit < patience.Of(t)/4; err = walk(limit) {
				limit *= 4
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestAHopIsGivenTime: a Service is routable a moment after its Pods are ready.
func TestAHopIsGivenTime(t *testing.T) {
	var asked []string
	tries := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tries++; tries < 3 {
			broken(w, r)
			return
		}
		answering(&asked)(w, r)
	}))
	defer s.Close()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	o := Options{URL: s.URL, Patience: patience.Of(t), Out: &out, Reader: fake.NewClientBuilder().WithScheme(scheme).WithObjects(mac(metav1.ConditionTrue)).Build()}
	if err := Walk(t.Context(), o); err != nil {
		t.Error(err)
	}
}

func TestAnAddressMustBeOne(t *testing.T) {
	for _, url := range []string{"", "metalfleet-gateway", "http://", "::"} {
		var failed *Error
		if err := Walk(t.Context(), Options{URL: url}); err == nil || errors.As(err, &failed) {
			t.Errorf("%q: error %v", url, err)
		}
	}
}

// TestALookupHasAnEnd: a resolver that does not answer leaves time for another attempt, and
// one that answers with thousands of addresses does not fill the log.
func TestALookupHasAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		began := time.Now()
		_, err := Options{Resolver: silent}.resolve(t.Context(), "gateway.example")
		if took := time.Since(began); err == nil || took > lookupTimeout {
			t.Errorf("%v after %s", err, took)
		}
	})
	if got := resolved("gateway.example", make([]string, 5000)); len(got) > 200 || !strings.Contains(got, "4992 more") {
		t.Errorf("%d bytes: %.200q", len(got), got)
	}
}
