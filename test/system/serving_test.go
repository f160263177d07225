//go:build !race

package system

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/test/fleet"
)

// ask asks for a short answer.
func (w *world) ask(ctx context.Context, model string, stream bool) (fleet.Answer, error) {
	return fleet.Ask(ctx, w.URL, fleet.Question{Model: model, Text: "Hello, fleet", Stream: stream, MaxTokens: 8})
}

func (s *suite) answers(t *testing.T) {
	whole, err := s.ask(t.Context(), "slow", false)
	must(t, err)
	streamed, err := s.ask(t.Context(), "default/slow", true)
	must(t, err)
	if whole.Text != streamed.Text || whole.Finish != streamed.Finish || whole.Usage.CompletionTokens != streamed.Usage.CompletionTokens {
		t.Errorf("whole %+v and streamed %+v differ", whole, streamed)
	}
	if whole.Usage.PromptTokens == 0 || whole.Usage.CompletionTokens == 0 || whole.Usage.CompletionTokens > 8 {
		t.Errorf("usage %+v", whole.Usage)
	}
	s.listed(t, "slow")
	s.remembered(t)
}

// remembered sends the same long prompt to the older endpoint once more than there
// are replicas: one of them has its prefix in the cache, and reports that.
func (s *suite) remembered(t *testing.T) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": "slow", "prompt": strings.Repeat("A rack holds many Macs. ", 60), "max_tokens": 4, "temperature": 0})
	must(t, err)
	cached, first := 0, ""
	for i := range 3 {
		resp, err := http.Post(s.URL+"/v1/completions", "application/json", bytes.NewReader(body))
		must(t, err)
		var c openai.Completion
		err = json.NewDecoder(resp.Body).Decode(&c)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || c.Object != "text_completion" || len(c.Choices) != 1 || c.Choices[0].FinishReason == nil ||
			c.Usage.Usage == nil || c.Usage.Usage.PromptTokensDetails == nil {
			t.Fatalf("%s: %+v (%v)", resp.Status, c, err)
		}
		if i == 0 {
			first = c.Choices[0].Text
		} else if c.Choices[0].Text != first {
			t.Errorf("%q, and at first %q", c.Choices[0].Text, first)
		}
		cached = max(cached, c.Usage.Usage.PromptTokensDetails.CachedTokens)
	}
	if cached == 0 {
		t.Error("no replica had a prompt in its cache that it had computed")
	}
}

// listed wants a model in /v1/models.
func (s *suite) listed(t *testing.T, name string) {
	t.Helper()
	resp, err := http.Get(s.URL + "/v1/models")
	must(t, err)
	defer resp.Body.Close()
	var list openai.ModelList
	must(t, json.NewDecoder(resp.Body).Decode(&list))
	if !slices.ContainsFunc(list.Data, func(m openai.Model) bool { return m.ID == name }) {
		t.Errorf("/v1/models lists %+v, without %s", list.Data, name)
	}
}

// deleted wants the bytes of a deleted model to be freed, measured, reported on
// the Mac and in an Event, and the process gone.
func (s *suite) deleted(t *testing.T) {
	md := s.deploy(t, fleet.Model{Name: "heavy", File: "heavy.gguf"}, replicas(2))
	s.waitReady(t, md, 2)
	engines, held := map[string]fleet.Engine{}, map[string]int64{}
	all := s.replicas(t, md, 2)
	for _, r := range all {
		engines[r.Name] = s.engineOf(t, r)
		held[r.Name] = footprint(t, engines[r.Name])
	}
	s.remove(t, md)
	for _, r := range all {
		if engines[r.Name].Alive() {
			t.Errorf("engine %d lives", engines[r.Name].PID)
		}
		mac := s.node(t, r.Spec.NodeName)
		i := slices.IndexFunc(mac.Status.Reclaims, func(c v1alpha1.Reclaim) bool { return c.ReplicaUID == string(r.UID) })
		if i < 0 {
			t.Fatalf("Mac %s has no reclaim of %s: %+v", mac.Name, r.Name, mac.Status.Reclaims)
		}
		last := mac.Status.Reclaims[i]
		if last.FreedBytes == nil || !fleet.Near(*last.FreedBytes, held[r.Name]) {
			t.Fatalf("reclaim of %s bytes, /proc showed %d: %+v", fleet.Bytes(last.FreedBytes), held[r.Name], last)
		}
		if last.Reason != v1alpha1.ReclaimDrained || last.Exit != v1alpha1.ExitClean {
			t.Errorf("reclaim %s/%s, want a clean drain", last.Reason, last.Exit)
		}
		if mac.Status.Summary.Freed == "" || mac.Status.Summary.Freed == "0" {
			t.Errorf("kubectl get mac shows FREED %q", mac.Status.Summary.Freed)
		}
		s.wantEvent(t, "MacNode", mac.Name, fmt.Sprintf("%d bytes", *last.FreedBytes))
	}
}
