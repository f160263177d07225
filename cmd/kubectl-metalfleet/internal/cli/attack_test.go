package cli

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/picture"
)

// evil is what a Mac, a tenant, or a server of models may have written.
const evil = "x\x1b[2J\x1b]0;owned\x07\u009b31m\u202e\u2028y\nerror: forged\rz"

// ours are the colours and the clearing of the screen that the plugin writes.
var ours = regexp.MustCompile(`\x1b\[3[123]m|\x1b\[0m|\x1b\[H\x1b\[2J`)

// wantPlain wants a text that only the plugin shaped.
func wantPlain(t *testing.T, what, text string) {
	t.Helper()
	if !strings.Contains(text, "owned") {
		t.Errorf("%s does not contain the input: %q", what, text)
	}
	text = ours.ReplaceAllString(text, "")
	if i := strings.IndexFunc(text, func(r rune) bool {
		return r != '\n' && (unicode.IsControl(r) || r == '\u2028' || r == '\u202e')
	}); i >= 0 {
		t.Errorf("%s speaks to the terminal at %d: %q", what, i, text)
	}
}

// TestAttackWordsOfOthers: messages of conditions come from Macs, and theirs
// from servers of models; none of them moves a terminal's cursor, and none
// begins a line.
func TestAttackWordsOfOthers(t *testing.T) {
	p := newPerson(t)
	p.terminal, p.now = true, time.Now()
	ns := p.namespace("team-evil")
	p.mac("mac-evil", 24*gib, func(m *v1alpha1.MacNode) {
		m.Status.AgentVersion = evil
		m.Status.Conditions[0].Message = evil
		m.Status.Disk.Cache.Message, m.Status.Settings.Message = evil, evil
		m.Spec.ClearCache = &v1alpha1.CacheClear{Request: "r"}
		m.Status.CacheCleared = &v1alpha1.CacheCleared{Request: "r", Message: evil, Time: metav1.Now()}
	})
	d := p.deployment(ns, "chat", func(d *v1alpha1.ModelDeployment) {
		d.Status.Conditions = append(d.Status.Conditions, p.is(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNotReady, evil, time.Minute))
	})
	p.replica(d, "chat-1", "mac-evil", func(r *v1alpha1.ModelReplica) {
		p.serving(r)
		r.Status.Conditions = append(r.Status.Conditions[:3], p.is(v1alpha1.ConditionLoaded, metav1.ConditionFalse, v1alpha1.ReasonLoadFailed, evil, time.Minute))
		r.Status.Summary.Progress = evil
	})
	p.happens("MacNode", "", "mac-evil", "WiredUnowned", evil, time.Minute)
	for _, args := range []string{"nodes", "top --once", "status mac-evil", "why team-evil/chat", "logs mac-evil"} {
		out, _ := p.wants(exitOK, strings.Split(args, " ")...)
		wantPlain(t, args, out)
		if strings.Contains(out, "\nerror:") {
			t.Errorf("%s: a line is forged: %q", args, out)
		}
	}
	var out, errs lockedBuffer
	e := p.env(&out, &errs)
	a := macCommand{&app{Env: &e}}
	m, err := p.macNow("mac-evil")
	p.must(err)
	wantPlain(t, "the answer to an order to clear", picture.Lines(a.showCleared(m.Name, m.Status.CacheCleared).Error()))
}

// TestAttackEventsOfOthers: a user who may create Events chooses every word of them.
func TestAttackEventsOfOthers(t *testing.T) {
	for name, set := range map[string]func(*corev1.Event){
		"type":   func(e *corev1.Event) { e.Type = evil },
		"reason": func(e *corev1.Event) { e.Reason = evil },
		"kind":   func(e *corev1.Event) { e.InvolvedObject.Kind = evil },
		"name":   func(e *corev1.Event) { e.InvolvedObject.Name = evil },
		"where":  func(e *corev1.Event) { e.InvolvedObject.Namespace = evil },
	} {
		var out bytes.Buffer
		e := &corev1.Event{Type: corev1.EventTypeNormal, Reason: "Loaded", Message: "loaded"}
		e.InvolvedObject = corev1.ObjectReference{Kind: "ModelReplica", Namespace: "team-a", Name: "qwen"}
		set(e)
		if err := (logsCommand{&app{Env: &Env{Out: &out}}}).line(e); err != nil {
			t.Fatal(err)
		}
		wantPlain(t, name, out.String())
		if strings.Count(out.String(), "\n") != 1 {
			t.Errorf("%s: a line is forged: %q", name, out.String())
		}
	}
}

// TestAttackAnswersOfAModel: what a model says, or a server instead of one,
// does not speak to the terminal.
func TestAttackAnswersOfAModel(t *testing.T) {
	p := newPerson(t)
	p.terminal = true
	refuse := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if refuse {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"error":{"message":%s,"type":%[1]s,"code":%[1]s}}`, quoted(evil))
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":%s}}]}\n\ndata: [DONE]\n\n", quoted(evil))
	}))
	t.Cleanup(s.Close)
	out, _ := p.wants(exitOK, "chat", "--url", s.URL, "m", "hello")
	wantPlain(t, "the answer", out)
	refuse = true
	_, errs := p.wants(exitFailed, "chat", "--url", s.URL, "m", "hello")
	wantPlain(t, "the refusal", errs)
	out, _ = p.wants(exitFailed, "bench", "--url", s.URL, "m", "--requests", "1", "--streams", "1")
	wantPlain(t, "the measurement", out)
}

// quoted is a text as JSON has it.
func quoted(s string) string {
	var b strings.Builder
	for _, r := range s {
		fmt.Fprintf(&b, `\u%04x`, r)
	}
	return `"` + b.String() + `"`
}
