//go:build !race

package system

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/anthropic"
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

// twoSessions sends two first messages of a coding agent that differ only in the
// attribution block at the head of the system prompt. The second one is answered
// by the same Mac, which has its prompt in the cache.
func (s *suite) twoSessions(t *testing.T) {
	// The cache keeps whole blocks of prompts, so the prompt is a little longer than
	// a number of them.
	const block, most = 256, 20
	words := 0
	for range 4 {
		n := s.countTokens(t, session("one", words))
		if n > 2000 && n%block > 0 && n%block <= most {
			break
		}
		missing := (2000/block+1)*block + most/2 - n
		if words == 0 {
			words = missing
			continue
		}
		words = max(1, words+missing*words/(n-s.countTokens(t, session("one", 0))))
	}
	first, second := s.message(t, session("one", words)), s.message(t, session("two", words))
	prompt := second.Usage.InputTokens + second.Usage.CacheReadInputTokens
	t.Logf("%d of the %d prompt tokens of the second session were cached", second.Usage.CacheReadInputTokens, prompt)
	if second.mac != first.mac || prompt < 2000 || float64(second.Usage.CacheReadInputTokens) < 0.99*float64(prompt) {
		t.Errorf("the second session was answered by %s, the first by %s; %d of its %d prompt tokens were cached", second.mac, first.mac, second.Usage.CacheReadInputTokens, prompt)
	}
}

// session is the first request of a session, with a number of words in its system
// prompt.
func session(id string, words int) map[string]any {
	text := func(s string) any { return map[string]any{"type": "text", "text": s} }
	return map[string]any{"model": "slow", "messages": []any{map[string]any{"role": "user", "content": "Mend the test."}}, "system": []any{
		text("x-anthropic-billing-header: cc_version=2.1.120.cf9; cc_entrypoint=cli; cch=" + id + ";"), text("You mend programs." + strings.Repeat(" a", words))}}
}

// post sends a request of Anthropic's API.
func (s *suite) post(t *testing.T, path string, request map[string]any, answer any) http.Header {
	t.Helper()
	body, err := json.Marshal(request)
	must(t, err)
	resp, err := http.Post(s.URL+path, "application/json", bytes.NewReader(body))
	must(t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	must(t, err)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %s", path, resp.Status, raw)
	}
	must(t, json.Unmarshal(raw, answer))
	return resp.Header
}

func (s *suite) countTokens(t *testing.T, request map[string]any) int {
	t.Helper()
	var count anthropic.CountAnswer
	s.post(t, "/v1/messages/count_tokens", request, &count)
	return count.InputTokens
}

type message struct {
	anthropic.MessageAnswer
	mac string
}

func (s *suite) message(t *testing.T, request map[string]any) message {
	t.Helper()
	request["max_tokens"] = 2
	var m message
	h := s.post(t, "/v1/messages", request, &m.MessageAnswer)
	m.mac = h.Get(agentapi.HeaderMac)
	if got := h.Get(agentapi.HeaderIgnored); got != "system[x-anthropic-billing-header]" {
		t.Errorf("ignored fields are %q", got)
	}
	return m
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
