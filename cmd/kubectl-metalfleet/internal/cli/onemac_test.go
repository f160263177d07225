package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/onemac"
)

// busy is a Mac with a model that works, and one that is not loaded.
func (p *person) busy(name string) *v1alpha1.MacNode {
	order := func(uid, name string) v1alpha1.Assignment {
		return v1alpha1.Assignment{ReplicaUID: uid, Epoch: 1, Namespace: "team-a", Name: name, Model: small, ReservedBytes: gib,
			Context: v1alpha1.ContextLimits{MaxTokens: 8192, MaxConcurrentRequests: 4, KVCacheTokens: 16384}, Desired: v1alpha1.DesiredRunning}
	}
	assigned := &v1alpha1.MacAssignment{ObjectMeta: metav1.ObjectMeta{Name: name}}
	assigned.Spec.Assignments = []v1alpha1.Assignment{order("u1", "chat-0a1b2c3d"), order("u2", "coder-11112222")}
	p.must(p.c.Create(p.t.Context(), assigned))
	p.t.Cleanup(func() { p.must(p.c.Delete(context.Background(), assigned)) })
	return p.mac(name, 192*gib, func(m *v1alpha1.MacNode) {
		s := &m.Status
		s.Backend = "mlx"
		s.Memory.FootprintBytes, s.Memory.ActiveBytes, s.Memory.PooledBytes, s.Memory.ThermalState = 11*gib, 10*gib, gib/2, "Nominal"
		s.Disk.Cache = v1alpha1.MacCache{Bytes: 3 * gib, LimitBytes: 50 * gib}
		s.Settings = v1alpha1.SettingsInForce{LogLevel: v1alpha1.LogInfo}
		s.Assignments = []v1alpha1.AssignmentStatus{
			{ReplicaUID: "u1", Epoch: 1, Progress: v1alpha1.Progress{Stage: v1alpha1.StageServing}, Memory: v1alpha1.EngineMemory{WeightsBytes: 9 * gib, FootprintBytes: 11 * gib},
				Activity:   &v1alpha1.EngineActivity{Running: 3, Queued: 1, PromptTokensTotal: 123456, GeneratedTokensTotal: 7890, CacheBytes: gib},
				Conditions: []metav1.Condition{{Type: v1alpha1.ConditionLoaded, Status: metav1.ConditionTrue, Reason: v1alpha1.ConditionLoaded, LastTransitionTime: metav1.Now()}}},
			{ReplicaUID: "u2", Epoch: 1, Progress: v1alpha1.Progress{Stage: v1alpha1.StageServing}},
		}
	})
}

func TestMacStatusShowsModelsMemoryAndHardware(t *testing.T) {
	p := newPerson(t)
	p.busy("mac-studio-7")
	out, _ := p.wants(exitOK, "status", "mac-studio-7")
	golden(t, "status", out)
	out, _ = p.wants(exitOK, "status", "mac-studio-7", "-o", "json")
	var s onemac.Status
	p.must(json.Unmarshal([]byte(out), &s))
	if s.Loaded != 1 || s.Models != 2 || s.WeightsBytes != 9*gib || s.Running != 3 || s.Queued != 1 || s.Pressure != v1alpha1.PressureNormal ||
		s.Hardware.Chip != "M2Ultra" || len(s.Engines) != 2 || s.Engines[1].Activity != nil {
		t.Error(out)
	}
	_, errs := p.wants(exitFailed, "status", "mac-nowhere")
	contains(t, "status", errs, `there is no Mac "mac-nowhere"`)
}

// Against a real API server, which by itself refuses what the plugin refuses.
func TestSettingsAreReadBackAsWritten(t *testing.T) {
	p := newPerson(t)
	p.busy("mac-set")
	out, _ := p.wants(exitOK, "settings", "mac-set", "settings.logLevel=Debug", "settings.cacheLimit=50Gi", "settings.cacheFree=0", "memory.ceiling=96Gi", "unschedulable=true")
	golden(t, "settings", out)
	written, _ := p.wants(exitOK, "settings", "mac-set", "-o", "json")
	p.wants(exitOK, "settings", "mac-set", "settings.logLevel=null", "settings.cacheFree=null", "unschedulable=false", "memory.policy=Safe")
	m, err := p.macNow("mac-set")
	p.must(err)
	if m.Spec.Settings.LogLevel != "" || m.Spec.Settings.CacheFree != nil || m.Spec.Settings.CacheLimit == nil || m.Spec.Unschedulable || m.Spec.Memory.Policy != v1alpha1.MemorySafe {
		t.Errorf("%+v", m.Spec)
	}
	p.in = written
	if out, _ := p.wants(exitOK, "settings", "mac-set", "--from", "-", "-o", "json"); out != written {
		t.Errorf("written was %s and %s is read back", written, out)
	}
	p.wants(exitOK, "settings", "mac-set", "class=studio", `settings.allowedSourceCIDRs=["10.20.0.0/16"]`, "settings.downloadRate=50M",
		`settings.quietHours={"days":["Sat"],"start":"09:00","end":"18:00","downloadRate":"5M"}`)
	p.wants(exitOK, "settings", "mac-set", `settings.quietHours={"start":"10:00","end":"18:00","downloadRate":"1M"}`, "settings.allowedSourceCIDRs=[]")
	m, err = p.macNow("mac-set")
	p.must(err)
	if q := m.Spec.Settings.QuietHours; m.Spec.Class != "studio" || q == nil || q.Start != "10:00" || q.Days != nil || m.Spec.Settings.AllowedSourceCIDRs == nil || len(m.Spec.Settings.AllowedSourceCIDRs) > 0 {
		t.Errorf("%+v", m.Spec)
	}
	_, errs := p.wants(exitFailed, "settings", "mac-set", "settings.hubEndpoint=http://hub")
	contains(t, "an address without TLS", errs, "settings.hubEndpoint must be https://HOST")
	for word, want := range map[string]string{"loglevel=Debug": `unknown setting "loglevel"`, "settings.cacheLimit=0": "at least 1"} {
		_, errs := p.wants(exitUsage, "settings", "mac-set", word)
		contains(t, word, errs, want)
	}
	p.wants(exitUsage, "settings", "mac-set", "--from", "-", "unschedulable=true")
	for patch, want := range map[string]string{
		`{"spec":{"settings":{"cacheLimit":"0"}}}`:                 "settings.cacheLimit must be greater than zero",
		`{"spec":{"settings":{"cacheFree":"-1"}}}`:                 "settings.cacheFree must not be negative",
		`{"spec":{"settings":{"logLevel":"Trace"}}}`:               `Unsupported value: "Trace"`,
		`{"spec":{"clearCache":{"request":"../x"}}}`:               "spec.clearCache.request",
		`{"spec":{"clearCache":{"tier":"Disk"}}}`:                  "Required value",
		`{"spec":{"clearCache":{"request":"r","tier":"Weights"}}}`: `Unsupported value: "Weights"`,
	} {
		if err := p.c.Patch(context.Background(), m, client.RawPatch(types.MergePatchType, []byte(patch))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", patch, err, want)
		}
	}
	err = p.c.Patch(context.Background(), m, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"settings":{"loglevel":"Debug"}}}`)),
		&client.PatchOptions{Raw: &metav1.PatchOptions{FieldValidation: metav1.FieldValidationStrict}})
	if err == nil || !strings.Contains(err.Error(), `unknown field "spec.settings.loglevel"`) {
		t.Errorf("an unknown name, as kubectl asks: %v", err)
	}
}

// answers plays the agent of a Mac for one order.
func (p *person) answers(name string, answer func(*v1alpha1.CacheClear) *v1alpha1.CacheCleared) {
	p.t.Helper()
	p.eventually("an order to clear", func() error {
		m, err := p.macNow(name)
		if err != nil {
			return err
		}
		if m.Spec.ClearCache == nil || m.Status.CacheCleared != nil && m.Status.CacheCleared.Request == m.Spec.ClearCache.Request {
			return fmt.Errorf("no order yet: %+v", m.Spec.ClearCache)
		}
		m.Status.CacheCleared = answer(m.Spec.ClearCache)
		m.Status.CacheCleared.Time = metav1.Now()
		return p.c.Status().Update(context.Background(), m)
	})
}

// A cache that was not cleared is not reported as clear.
func TestClearCachePrintsTheBytesFreed(t *testing.T) {
	p := newPerson(t)
	p.busy("mac-full")
	for _, tc := range []struct {
		args   []string
		tier   v1alpha1.CacheTier
		answer v1alpha1.CacheCleared
		code   int
		says   string
	}{
		{args: nil, tier: v1alpha1.CacheTierAll, answer: v1alpha1.CacheCleared{MemoryBytes: ptr.To(gib), DiskBytes: ptr.To(3 * gib), Engines: []v1alpha1.EngineCleared{{ReplicaUID: "u1", Bytes: ptr.To(gib)}}},
			code: exitOK, says: "Mac mac-full freed 1.0 GiB of memory from 1 engine and 3.0 GiB of disk\n"},
		{args: []string{"--tier", "disk"}, tier: v1alpha1.CacheTierDisk, answer: v1alpha1.CacheCleared{}, code: exitOK, says: "freed nothing: it has no cache on disk"},
		{args: []string{"--tier", "memory"}, tier: v1alpha1.CacheTierMemory, answer: v1alpha1.CacheCleared{MemoryBytes: ptr.To[int64](0), Engines: []v1alpha1.EngineCleared{{ReplicaUID: "u1"}}, Message: "the engine of replica u1 did not answer"},
			code: exitFailed, says: "not all caches of Mac mac-full were cleared: the engine of replica u1 did not answer"},
	} {
		var out, errs lockedBuffer
		ended := make(chan int, 1)
		go func() {
			ended <- p.start(context.Background(), &out, &errs, append([]string{"clear-cache", "mac-full"}, tc.args...)...)
		}()
		var tier v1alpha1.CacheTier
		p.answers("mac-full", func(order *v1alpha1.CacheClear) *v1alpha1.CacheCleared {
			tier = order.Tier
			a := tc.answer
			a.Request = order.Request
			return &a
		})
		if code := <-ended; code != tc.code || tier != tc.tier || !strings.Contains(out.String()+errs.String(), tc.says) {
			t.Errorf("%q: code %d, tier %s:\n%s%s", tc.args, code, tier, out.String(), errs.String())
		}
	}
	_, errs := p.wants(exitUsage, "clear-cache", "mac-full", "--tier", "weights")
	contains(t, "clear-cache", errs, "want all, memory or disk")
	_, errs = p.wants(exitFailed, "clear-cache", "mac-full", "--timeout", "1ms")
	contains(t, "clear-cache", errs, "timed out (--timeout)")
	out, _ := p.wants(exitOK, "clear-cache", "mac-full", "--timeout", "0")
	contains(t, "clear-cache", out, "to clear its caches")
}
