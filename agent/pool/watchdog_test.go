package pool

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool/enginetest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/kv/cold"
	"metalfleet.dev/metalfleet/metal/wire"
)

// TestAnEngineWhoseLoopHangsIsRestarted: it answers calls and sends its status as before, and computes
// nothing for any request. One that computes for hours is left alone.
func TestAnEngineWhoseLoopHangsIsRestarted(t *testing.T) {
	for name, tc := range map[string]struct {
		script enginetest.Script
		want   []string
	}{
		"hung":         {script: enginetest.Script{HangStep: true, IgnoreShutdown: true}, want: []string{"a/" + string(v1alpha1.ReclaimCrashed)}},
		"hung for all": {script: enginetest.Script{HangStep: true, IgnoreShutdown: true, IgnoreTerm: true}, want: []string{"a/" + string(v1alpha1.ReclaimCrashed)}},
		"busy":         {},
	} {
		t.Run(name, func(t *testing.T) {
			tc.script.HoldBytes, tc.script.TokenMilliseconds = gib, 60_000
			play(t, func(s *stage) {
				s.follow(s.model("a", tc.script))
				s.after(time.Minute)
				h := s.acquire("a")
				defer h.Release()
				ended := make(chan error, 1)
				go func() { _, err := ask(s.ctx, h, 600, nil); ended <- err }()
				s.after(time.Minute)
				s.wantReclaims()
				s.after(10 * time.Minute)
				s.wantReclaims(tc.want...)
				if len(tc.want) > 0 {
					if err := <-ended; err == nil {
						t.Error("the request ended as if it was computed")
					}
				}
				s.want("a", "Serving True/Serving")
			})
		})
	}
}

// TestAnEngineThatTakesNoLimitsIsEnded: it sends its status, and may read nothing of what is sent to it.
func TestAnEngineThatTakesNoLimitsIsEnded(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: gib, IgnoreLimits: true}), s.model("b", enginetest.Script{HoldBytes: gib}))
		s.after(4 * time.Minute)
		s.wantReclaims()
		s.after(3 * time.Minute)
		s.wantReclaims("a/" + string(v1alpha1.ReclaimCrashed))
	})
}

// TestALoadThatHangsIsGivenUp although its memory moves: the process still sends its status, and
// collects garbage.
func TestALoadThatHangsIsGivenUp(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("a", enginetest.Script{HoldBytes: 10 * gib, LoadMilliseconds: 10_000, HangLoading: true, IgnoreShutdown: true}))
		for n := range int64(6) {
			s.after(30 * time.Second)
			if e := s.twin.Engine("a"); e != nil {
				e.SetExtra(n % 3 * mib)
			}
		}
		s.wantReclaims("a/" + string(v1alpha1.ReclaimLoadFailed))
	})
}

// TestAnEngineThatFillsTheDiskWithItsLogIsEnded, and neither another one nor the next one.
func TestAnEngineThatFillsTheDiskWithItsLogIsEnded(t *testing.T) {
	play(t, func(s *stage) {
		s.follow(s.model("bad", enginetest.Script{HoldBytes: gib}), s.model("good", enginetest.Script{HoldBytes: gib}))
		s.after(time.Minute)
		for name, bytes := range map[string]int64{"bad": 100 * gib, "good": 2 * maxLogBytes} {
			log := s.lifecycle.files.engine(memory.Key{UID: name, Epoch: 1}, 1).log
			if err := errors.Join(os.WriteFile(log, nil, 0o600), os.Truncate(log, bytes)); err != nil {
				t.Fatal(err)
			}
		}
		s.after(5 * time.Minute)
		s.wantReclaims("bad/" + string(v1alpha1.ReclaimCrashed))
		s.want("bad", "Serving True/Serving")
	})
}

// TestASlowLoadIsNotGivenUp: of 400 GiB on a disk that others use as well, 28 MB are read in a second.
func TestASlowLoadIsNotGivenUp(t *testing.T) {
	const total, perSecond = 400 * gib, 28 << 20
	began, longest := time.Unix(1_800_000_000, 0), time.Duration(0)
	g := &engine{progressAt: began}
	g.config.LimitBytes = total
	for read := int64(0); read < total; read += perSecond {
		g.status = &wire.Status{Load: &wire.LoadProgress{BytesDone: read, BytesTotal: total}}
		longest = max(longest, g.stalled(memory.EngineReading{Footprint: read}, began.Add(time.Duration(read/perSecond)*time.Second)))
	}
	if most := (Timing{}).withDefaults().LoadStall; longest >= most {
		t.Errorf("no progress for %s, want less than the %s after which a load is given up", longest, most)
	}
}

// TestEnginesThatFillTheCacheFolderAreEnded, and no others.
func TestEnginesThatFillTheCacheFolderAreEnded(t *testing.T) {
	play(t, func(s *stage) {
		s.lifecycle.CacheDir = "/cache"
		cached := func(a *v1alpha1.Assignment) {
			a.PrefixCache = v1alpha1.PrefixCacheLimits{DiskBytes: gib, QueueBytes: 1 << 20}
		}
		bad, good := s.model("bad", enginetest.Script{HoldBytes: gib}, cached), s.model("good", enginetest.Script{HoldBytes: gib}, cached)
		good.Model.Digest = "sha256:" + strings.Repeat("b", 64)
		s.follow(bad, good, withAdapter(s.model("adapted", enginetest.Script{HoldBytes: gib}, of("other"), cached)), s.model("none", enginetest.Script{HoldBytes: gib}))
		s.after(time.Minute)
		s.EndOverfull([]string{cold.ModelFolder("/cache", CacheModel(bad))})
		s.after(time.Minute)
		s.wantReclaims("bad/" + string(v1alpha1.ReclaimCrashed))
		s.want("bad", "Serving True/Serving")
	})
}

// TestAFolderThatEndedEnginesIsNotUsedForAnHour: engines of other deployments share it, and one that was
// taken over fills it or removes blocks again and again.
func TestAFolderThatEndedEnginesIsNotUsedForAnHour(t *testing.T) {
	play(t, func(s *stage) {
		s.lifecycle.CacheDir = "/cache"
		cached := func(a *v1alpha1.Assignment) {
			a.PrefixCache = v1alpha1.PrefixCacheLimits{DiskBytes: gib, QueueBytes: 1 << 20}
		}
		bad := s.model("bad", enginetest.Script{HoldBytes: gib}, cached)
		s.follow(bad, s.model("honest", enginetest.Script{HoldBytes: gib}, cached))
		folder := cold.ModelFolder("/cache", CacheModel(bad))
		s.after(time.Minute)
		for range 2 * (maxCrashes + 1) {
			s.EndOverfull([]string{folder})
			s.after(cachelessFor / 100)
		}
		s.want("honest", "Serving True/Serving")
		if n := len(s.Snapshot().Reclaims); n != 2 {
			t.Errorf("%d engines were ended, want 2", n)
		}
		s.after(cachelessFor)
		s.lifecycle.read(func() {
			for k, e := range s.lifecycle.entries {
				if now, next := e.engine.config.CacheDir, s.lifecycle.newEngine(e).config.CacheDir; now != "" || next != folder {
					t.Errorf("the engine of %s may write %q, and the next one an hour later %q", k.UID, now, next)
				}
			}
		})
	})
}

// withAdapter adds an adapter to the model of an order.
func withAdapter(a v1alpha1.Assignment) v1alpha1.Assignment {
	files := []model.File{{Path: "adapter_model.safetensors", Bytes: 1, SHA256: strings.Repeat("a", 64)}}
	a.Model.Adapters = []model.Adapter{{Name: "x", Source: "hf://other/x", Digest: model.DigestOf(files), Files: files}}
	return a
}

// TestAttackTheCacheOfAnotherNamespace: an engine that text, a chat template or an adapter took over may
// write the folder of its cache, in which no engine of another namespace, adapter or template has blocks.
func TestAttackTheCacheOfAnotherNamespace(t *testing.T) {
	play(t, func(s *stage) {
		s.lifecycle.CacheDir = "/cache"
		cached := func(a *v1alpha1.Assignment) {
			a.PrefixCache = v1alpha1.PrefixCacheLimits{DiskBytes: gib, QueueBytes: 1 << 20}
		}
		templated := func(a *v1alpha1.Assignment) { a.ChatTemplate = "{{ messages }}" }
		one := func(uid string, change ...func(*v1alpha1.Assignment)) v1alpha1.Assignment {
			return s.model(uid, enginetest.Script{HoldBytes: gib}, append(change, cached)...)
		}
		s.follow(one("plain"), one("plain again"), one("of another namespace", of("other")),
			withAdapter(one("adapted")), withAdapter(one("adapted again")), withAdapter(one("adapted, of another namespace", of("other"))),
			one("with a template", templated), one("with a template again", templated), one("with a template, of another namespace", templated, of("other")))
		s.after(time.Minute)
		users := map[string][]string{}
		s.lifecycle.read(func() {
			for k, e := range s.lifecycle.entries {
				uid, _ := strings.CutSuffix(k.UID, " again")
				folder := e.engine.config.CacheDir
				users[folder] = append(users[folder], uid)
				if got := cold.ModelFolder("/cache", s.lifecycle.cacheModel(e.engine)); got != folder {
					t.Errorf("blocks of %s lie in %s, and its engine may write %s", k.UID, got, folder)
				}
			}
		})
		for folder, uids := range users {
			slices.Sort(uids)
			if uids = slices.Compact(uids); len(uids) != 1 {
				t.Errorf("%s is shared by %q", folder, uids)
			}
		}
		if len(users) != 6 {
			t.Errorf("%d folders, want 6: equal engines of a namespace share one", len(users))
		}
	})
}

// TestAnEngineOfAnEarlierAgentKeepsItsBlocks: it has another folder than the next ones, until it ends.
func TestAnEngineOfAnEarlierAgentKeepsItsBlocks(t *testing.T) {
	lc := &lifecycle{Config: Config{CacheDir: "/cache"}}
	adapted := wire.Config{ModelDigest: "m", Adapters: []wire.Adapter{{Digest: "a"}}}
	for _, of := range []struct {
		config       wire.Config
		folder, want string
	}{
		{wire.Config{ModelDigest: "m"}, "m", "m"}, {adapted, "m", "m"}, {adapted, adapted.CacheModel(), adapted.CacheModel()},
	} {
		of.config.CacheDir = cold.ModelFolder("/cache", of.folder)
		if got := lc.cacheModel(&engine{config: of.config}); got != of.want {
			t.Errorf("%+v has blocks of %q, want %q", of.config, got, of.want)
		}
	}
	e := &entry{assignment: assignment("u", "m")}
	earlier := e.config("p")
	if earlier.Namespace = ""; !sameService(earlier, e.config("p")) {
		t.Error("an engine that an earlier agent started is loaded again")
	}
}

// TestAnEngineThatCannotBeMeasuredIsEnded while another one can, also if it can now and then; one that cannot for a
// minute lives on.
func TestAnEngineThatCannotBeMeasuredIsEnded(t *testing.T) {
	for name, hidden := range map[string]func(second int) bool{
		"never measured": func(int) bool { return true },
		"now and then":   func(second int) bool { return second%30 > 2 },
		"for a minute":   func(second int) bool { return second < 60 },
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *stage) {
				s.follow(s.model("hidden", enginetest.Script{HoldBytes: gib}), s.model("good", enginetest.Script{HoldBytes: gib}))
				s.after(time.Minute)
				pid := s.twin.Engine("hidden").PID()
				for second := range 600 {
					s.mac.Show(pid)
					if hidden(second) {
						s.mac.Hide(pid)
					}
					s.after(time.Second)
				}
				if name == "for a minute" {
					s.wantReclaims()
					return
				}
				s.wantReclaims("hidden/" + string(v1alpha1.ReclaimCrashed))
				s.want("hidden", "Serving True/Serving")
			})
		})
	}
}
