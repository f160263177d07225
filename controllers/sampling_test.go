//go:build !race

package controllers_test

import (
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestSamplingAndTemplatesAreValidated(t *testing.T) {
	s := newSchema(t)
	for name, tc := range map[string]struct{ spec, sentence string }{
		"everything":                  {spec: "sampling: {temperature: '0.7', topP: '0.9', topK: 40, minP: '0.05', repetitionPenalty: '1.1', maxTokens: 512, limits: {maxTokens: 1024, temperature: '1.2'}}"},
		"the bounds":                  {spec: "sampling: {temperature: '0', topP: '1', topK: 0, minP: '0.0', repetitionPenalty: '0.01', limits: {temperature: '2'}}"},
		"a number":                    {spec: "sampling: {temperature: 0.7}", sentence: "must be of type string"},
		"a word":                      {spec: "sampling: {temperature: hot}", sentence: "should match"},
		"a negative temperature":      {spec: "sampling: {temperature: '-1'}", sentence: "should match"},
		"a temperature of three":      {spec: "sampling: {temperature: '3'}", sentence: "sampling.temperature must be from 0 to 2"},
		"a share above all":           {spec: "sampling: {topP: '1.5'}", sentence: "sampling.topP must be from 0 to 1"},
		"a share of the likeliest":    {spec: "sampling: {minP: '1.5'}", sentence: "sampling.minP must be from 0 to 1"},
		"fewer than no tokens":        {spec: "sampling: {topK: -1}", sentence: "greater than or equal to 0"},
		"a penalty of nothing":        {spec: "sampling: {repetitionPenalty: '0'}", sentence: "sampling.repetitionPenalty must be from 0.01 to 100"},
		"a penalty beyond":            {spec: "sampling: {repetitionPenalty: '101'}", sentence: "sampling.repetitionPenalty must be from 0.01 to 100"},
		"answers of nothing":          {spec: "sampling: {maxTokens: 0}", sentence: "greater than or equal to 1"},
		"a default above its limit":   {spec: "sampling: {maxTokens: 9, limits: {maxTokens: 8}}", sentence: "sampling.maxTokens must not exceed sampling.limits.maxTokens"},
		"a hotter default":            {spec: "sampling: {temperature: '1.3', limits: {temperature: '1.2'}}", sentence: "sampling.temperature must not exceed sampling.limits.temperature"},
		"a limit of three":            {spec: "sampling: {limits: {temperature: '3'}}", sentence: "sampling.limits.temperature must be from 0 to 2"},
		"a template":                  {spec: "chatTemplate: '{% for m in messages %}{{ m.content }}{% endfor %}'"},
		"the longest template":        {spec: "chatTemplate: '" + strings.Repeat("x", 16384) + "'"},
		"a template that is too long": {spec: "chatTemplate: '" + strings.Repeat("x", 16385) + "'", sentence: "may not be more than 16384"},
		"an empty template":           {spec: "chatTemplate: ''", sentence: "chatTemplate"},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *s
			sub.t = t
			u := sub.object("apiVersion: metalfleet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {namespace: NS, name: d}\nspec:\n  model: {source: 'file://a'}\n  " + tc.spec)
			sub.want(sub.c.Create(sub.ctx, u, client.DryRunAll), tc.sentence)
		})
	}
}

// They are part of the revision, and reach the Mac of its replica; an undo restores them.
func TestSamplingAndTemplateReachTheMac(t *testing.T) {
	w := newWorld(t)
	w.mac("mac-1", holding(60*gib))
	w.deploy("chat", nil)
	first := w.deployment("chat", v1alpha1.ConditionReady, v1alpha1.ReasonReady).Status.UpdateRevision
	sampling := v1alpha1.SamplingSpec{Temperature: "0.7", Limits: v1alpha1.SamplingLimits{MaxTokens: 64}}
	w.edit("chat", func(s *v1alpha1.ModelDeploymentSpec) { s.Sampling, s.ChatTemplate = sampling, "{{ messages }}" })
	w.eventually("the new revision serves", func() error {
		d := w.get("chat")
		if d.Status.CurrentRevision == first || d.Status.CurrentRevision != d.Status.UpdateRevision || d.Status.Replicas != 1 {
			return fmt.Errorf("revision %s of %s with %d replicas", d.Status.CurrentRevision, d.Status.UpdateRevision, d.Status.Replicas)
		}
		return nil
	})
	w.eventually("the Mac runs nothing else", func() error { // the old replica drains after the new one serves
		for _, a := range w.assigned("mac-1").Assignments {
			if a.Desired == v1alpha1.DesiredRunning && (a.Sampling != sampling || a.ChatTemplate != "{{ messages }}") {
				return fmt.Errorf("it is assigned %+v and the template %q", a.Sampling, a.ChatTemplate)
			}
		}
		return nil
	})
}
