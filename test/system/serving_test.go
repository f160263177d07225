package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// ask asks for a short answer.
func (s *suite) ask(ctx context.Context, model string, stream bool) (fleet.Answer, error) {
	return fleet.Ask(ctx, s.URL, fleet.Question{Model: model, Text: "Hello, fleet", Stream: stream, MaxTokens: 8})
}

func (s *suite) answers(t *testing.T) {
	whole, err := s.ask(t.Context(), "slow", false)
	if err != nil {
		t.Fatal(err)
	}
	streamed, err := s.ask(t.Context(), "default/slow", true)
	if err != nil {
		t.Fatal(err)
	}
	if whole.Text != streamed.Text || whole.Finish != streamed.Finish || whole.Usage.CompletionTokens != streamed.Usage.CompletionTokens {
		t.Errorf("whole %+v and streamed %+v differ", whole, streamed)
	}
	if whole.Usage.PromptTokens == 0 || whole.Usage.CompletionTokens == 0 || whole.Usage.CompletionTokens > 8 {
		t.Errorf("usage %+v", whole.Usage)
	}
	s.listed(t, "slow")
	s.completed(t)
	s.remembered(t)
}

// remembered asks the same long prompt once more than there are replicas: one of
// them does not compute it again, and says so.
func (s *suite) remembered(t *testing.T) {
	t.Helper()
	long := strings.Repeat("A rack holds many Macs. ", 60)
	cached := 0
	var first string
	for i := range 3 {
		resp, err := http.Post(s.URL+"/v1/completions", "application/json", jsonBody(t, map[string]any{
			"model": "slow", "prompt": long, "max_tokens": 4, "temperature": 0}))
		if err != nil {
			t.Fatal(err)
		}
		var c openai.Completion
		err = json.NewDecoder(resp.Body).Decode(&c)
		resp.Body.Close()
		if err != nil || len(c.Choices) != 1 || c.Usage.Usage == nil || c.Usage.Usage.PromptTokensDetails == nil {
			t.Fatalf("%+v (%v)", c, err)
		}
		if i == 0 {
			first = c.Choices[0].Text
		} else if c.Choices[0].Text != first {
			t.Errorf("%q, and %q where it was asked first", c.Choices[0].Text, first)
		}
		cached = max(cached, c.Usage.Usage.PromptTokensDetails.CachedTokens)
	}
	if cached == 0 {
		t.Error("no replica remembered a prompt that it had computed")
	}
}

// listed wants a model in /v1/models.
func (s *suite) listed(t *testing.T, name string) {
	t.Helper()
	resp, err := http.Get(s.URL + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var list openai.ModelList
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(list.Data, func(m openai.Model) bool { return m.ID == name }) {
		t.Errorf("/v1/models lists %+v, without %s", list.Data, name)
	}
}

// completed asks the older endpoint.
func (s *suite) completed(t *testing.T) {
	t.Helper()
	resp, err := http.Post(s.URL+"/v1/completions", "application/json", jsonBody(t, map[string]any{
		"model": "slow", "prompt": "The fleet", "max_tokens": 4, "temperature": 0}))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var c openai.Completion
	if err := json.NewDecoder(resp.Body).Decode(&c); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || len(c.Choices) != 1 || c.Choices[0].FinishReason == nil || c.Object != "text_completion" {
		t.Errorf("completion %s: %+v", resp.Status, c)
	}
}

// deleted wants the bytes of a deleted model to come back, measured, said on
// the Mac and in an Event, and the process gone.
func (s *suite) deleted(t *testing.T) {
	md := s.deploy(t, "default", "heavy", source("heavy.gguf"), replicas(2))
	s.waitReady(t, "default", "heavy", 2)
	type held struct {
		replica v1alpha1.ModelReplica
		engine  fleet.Engine
		bytes   int64
	}
	var all []held
	var err error
	for _, r := range s.replicasOf(t, "default", "heavy") {
		h := held{replica: r, engine: s.engineOf(t, r)}
		if h.bytes, err = fleet.Footprint(h.engine.PID); err != nil {
			t.Fatal(err)
		}
		all = append(all, h)
	}
	if len(all) != 2 {
		t.Fatalf("%d replicas, want 2", len(all))
	}
	s.remove(t, md)
	for _, h := range all {
		if h.engine.Alive() {
			t.Errorf("engine %d lives", h.engine.PID)
		}
		mac := s.mac(t, h.replica.Spec.NodeName)
		i := slices.IndexFunc(mac.Status.Reclaims, func(r v1alpha1.Reclaim) bool { return r.ReplicaUID == string(h.replica.UID) })
		if i < 0 {
			t.Fatalf("Mac %s has no reclaim of %s: %+v", mac.Name, h.replica.Name, mac.Status.Reclaims)
		}
		last := mac.Status.Reclaims[i]
		if last.FreedBytes == nil || math.Abs(float64(*last.FreedBytes)/float64(h.bytes)-1) > 0.05 {
			t.Errorf("reclaim of %s bytes, but /proc said %d: %+v", figure(last.FreedBytes), h.bytes, last)
		}
		if last.Reason != v1alpha1.ReclaimDrained || last.Exit != v1alpha1.ExitClean {
			t.Errorf("reclaim %s/%s, want a clean drain", last.Reason, last.Exit)
		}
		if mac.Status.Summary.Freed == "" || mac.Status.Summary.Freed == "0" {
			t.Errorf("kubectl get mac shows FREED %q", mac.Status.Summary.Freed)
		}
		if last.FreedBytes != nil {
			s.wantEvent(t, mac.Name, fmt.Sprintf("%d bytes", *last.FreedBytes))
		}
	}
}

func figure(n *int64) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}

// wantEvent waits for an Event about a Mac that says some words.
func (s *suite) wantEvent(t *testing.T, mac, words string) {
	t.Helper()
	eventually(t, "an Event about "+mac+" says "+words, patience, func(ctx context.Context) error {
		var events corev1.EventList
		if err := s.Client.List(ctx, &events); err != nil {
			return err
		}
		var said []string
		for _, e := range events.Items {
			if e.InvolvedObject.Kind != "MacNode" || e.InvolvedObject.Name != mac {
				continue
			}
			if containsWords(e.Message, words) {
				return nil
			}
			said = append(said, e.Message)
		}
		return errors.New("they say " + fmt.Sprint(said))
	})
}
