package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// happens posts an Event as the operator does.
func (p *person) happens(kind, namespace, name, reason, message string, ago time.Duration) {
	p.t.Helper()
	where := namespace
	if where == "" {
		where = metav1.NamespaceDefault
	}
	at := metav1.NewTime(p.now.Add(-ago))
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: where, GenerateName: name + "."},
		InvolvedObject: corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: kind, Namespace: namespace, Name: name},
		Type:           corev1.EventTypeNormal, Reason: reason, Message: message, FirstTimestamp: at, LastTimestamp: at, Count: 1,
	}
	p.must(p.c.Create(context.Background(), e))
	p.t.Cleanup(func() { p.must(p.c.Delete(context.Background(), e)) })
}

func TestLogsAreEventsInTheOrderOfTime(t *testing.T) {
	p := newPerson(t)
	p.office()
	p.happens("ModelReplica", "team-a", "chat-99999999", "Reclaimed", "Drained, freed 10.2 GiB", 3*time.Minute)
	p.happens("MacNode", "", "mac-studio-1", "Reclaimed", "team-a/chat-99999999: Drained, freed 10.2 GiB", 2*time.Minute)
	p.happens("ModelReplica", "team-a", "chat-0a1b2c3d", "Reclaimed", "Crashed", 4*time.Minute)
	p.happens("ModelReplica", "team-a", "chatty-0a1b2c3d", "Reclaimed", "of another model", time.Minute)
	p.happens("MacNode", "", "mac-mini-1", "SoftPressure", "of another Mac", time.Minute)
	out, _ := p.wants(exitOK, "logs", "team-a/chat")
	golden(t, "logs", out)

	out, _ = p.wants(exitOK, "logs", "mac-mini-1", "-o", "json")
	var told told
	p.must(json.Unmarshal([]byte(out), &told))
	if told.Kind != "MacNode" || told.Name != "mac-mini-1" || told.Reason != "SoftPressure" {
		t.Errorf("JSON: %s", out)
	}
	_, errs := p.wants(exitOK, "logs", "mac-new")
	contains(t, "logs", errs, "No Events found.")
	_, errs = p.wants(exitFailed, "logs", "ghost")
	contains(t, "logs", errs, `no ModelDeployment in namespace "default" has the name "ghost"`, "no Mac has that name")
	p.followsLogs(t)
}

func (p *person) followsLogs(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var o, e lockedBuffer
	ended := make(chan int, 1)
	go func() { ended <- p.start(ctx, &o, &e, "logs", "mac-mini-2", "-f") }()
	n := 0
	p.eventually("events are printed", func() error {
		if n++; n%10 == 1 { // the watch may start after the first
			p.happens("MacNode", "", "mac-mini-2", "HardPressure", "while it is watched", 0)
			p.happens("MacNode", "", "mac-mini-1", "HardPressure", "elsewhere", 0)
		}
		return said(o.String(), "HardPressure  MacNode mac-mini-2: while it is watched")
	})
	stop()
	if code := <-ended; code != exitOK || strings.Contains(o.String(), "elsewhere") {
		t.Errorf("ended with %d: %s%s", code, o.String(), e.String())
	}
}

// TestLogsComeThroughTheGateway, by a port-forward to its Pod.
func TestLogsComeThroughTheGateway(t *testing.T) {
	p := newPerson(t)
	p.office()
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "mac-mini-1") {
			http.Error(w, "this gateway knows no Mac mac-mini-1", http.StatusNotFound)
			return
		}
		fmt.Fprintf(w, "%s\nof\x1b[31m %s\n", r.URL.Path, r.URL.RawQuery)
	}))
	t.Cleanup(gateway.Close)
	k, port := startKubelet(t)
	p.gatewayPod(port, strings.TrimPrefix(gateway.URL, "http://127.0.0.1:"))
	out, _ := p.wants(exitOK, "logs", "mac-studio-1", "--of", "agents", "--bytes", "500")
	if out != "/logs/mac-studio-1\nof?[31m bytes=500\n" || k.count() == 0 {
		t.Errorf("%d forwards; printed %q", k.count(), out)
	}
	out, _ = p.wants(exitOK, "logs", "team-a/chat", "--of", "engines", "--url", gateway.URL)
	contains(t, "logs", out, "/logs/mac-studio-1/", "bytes=65536")
	_, errs := p.wants(exitFailed, "logs", "mac-mini-1", "--of", "agents")
	contains(t, "logs", errs, "agent of Mac mac-mini-1: this gateway knows no Mac mac-mini-1")
	for _, bad := range [][]string{{"--of", "prompts"}, {"--of", "agents", "-f"}, {"--bytes", "0"}, {"--bytes", "9999999"}} {
		p.wants(exitUsage, append([]string{"logs", "mac-mini-1"}, bad...)...)
	}
}
