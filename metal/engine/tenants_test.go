package engine_test

import (
	"path/filepath"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/metal/chat"
	"metalfleet.dev/metalfleet/metal/engine"
	"metalfleet.dev/metalfleet/metal/grammar"
	"metalfleet.dev/metalfleet/metal/ref"
	"metalfleet.dev/metalfleet/metal/sample"
	"metalfleet.dev/metalfleet/metal/text"
	"metalfleet.dev/metalfleet/metal/tinymodel"
)

// record is a form of which an attacker knows all but one word.
func record(word string) *string {
	return prompt(strings.Repeat("Patient record of the clinic. ", 20) + "Name: J. Doe. Diagnosis: " + word + ". " +
		strings.Repeat("Please summarise the history for the insurer. ", 12))
}

// cachedOf asks one token and returns how many of the prompt were restored.
func cachedOf(t *testing.T, e *engine.Engine, r engine.Request) int {
	t.Helper()
	greedy := sample.Greedy()
	r.Sampling, r.MaxTokens = &greedy, 1
	return ask(t, e, r).finished.Usage.Cached
}

// restored is how many tokens an engine has restored in all: what a clock would show.
func restored(e *engine.Engine) int64 { return e.Status().Prefixes.Restored }

// A tenant that guesses what another asked sees the same for right and wrong guesses,
// in memory and from the disk that an earlier engine wrote to.
func TestAttackATenantGuessesAnothersPrompt(t *testing.T) {
	c := tinymodel.Default()
	c.Context = 4096
	dir, path := t.TempDir(), model(t, c)
	for _, epoch := range []string{"epoch-1", "epoch-2"} {
		o := engine.Options{ModelPath: path, Sequences: 2, PrefixCache: true, ModelDigest: "sha256:aa", Numerics: "ref 1"}
		below := onDisk(t, dir, epoch, &o)
		e := ready(t, o, ref.Options{})
		victim := engine.Request{Prompt: record("epilepsy"), Tenant: "a"}
		if first := cachedOf(t, e, victim); epoch == "epoch-2" && first == 0 {
			t.Error("the tenant itself finds nothing on the disk")
		}
		before := restored(e)
		for _, tenant := range []string{"b", ""} {
			for i, guess := range []string{"diabetes", "epilepsy", "leukemia"} {
				// Each with a salt: the attacker's own guesses have a common beginning too.
				r := engine.Request{Prompt: record(guess), Tenant: tenant, CacheSalt: string(rune('a'+i)) + epoch}
				if n := cachedOf(t, e, r); n != 0 {
					t.Errorf("%s: tenant %q guesses %s and has %d tokens restored", epoch, tenant, guess, n)
				}
			}
			if n := cachedOf(t, e, engine.Request{Prompt: record("epilepsy"), Tenant: tenant}); epoch == "epoch-1" && n != 0 {
				t.Errorf("tenant %q has %d tokens of another restored", tenant, n)
			}
		}
		if epoch == "epoch-1" && restored(e) != before {
			t.Errorf("%d tokens of another tenant were restored", restored(e)-before)
		}
		if again := cachedOf(t, e, victim); again < 256 {
			t.Errorf("%s: the tenant itself has %d tokens restored", epoch, again)
		}
		if n := cachedOf(t, e, engine.Request{Prompt: record("epilepsy"), Tenant: "a", CacheSalt: "mine" + epoch}); n != 0 {
			t.Errorf("%s: a request with another salt has %d tokens restored", epoch, n)
		}
		stop(e)
		if err := e.Wait(); err != nil {
			t.Fatal(err)
		}
		below()
	}
}

// What a deployment shares is found by all tenants, and nothing after it.
func TestTenantsShareWhatTheDeploymentStates(t *testing.T) {
	system := strings.Repeat("You are the assistant of the clinic. Be brief and kind. ", 10)
	secret := strings.Repeat("The diagnosis is epilepsy. ", 12)
	conversation := func(system, question string) *text.Chat {
		return &text.Chat{Messages: []chat.Message{{Role: "system", Content: system}, {Role: "user", Content: question}}}
	}
	c := tinymodel.Default()
	c.Context = 4096
	dir := filepath.Join(t.TempDir(), "model")
	if err := tinymodel.WriteFolder(dir, c, tinymodel.Layout{}); err != nil {
		t.Fatal(err)
	}
	retemplate(t, dir, hermes)
	e := ready(t, engine.Options{ModelPath: dir, CacheMemory: mebi, PrefixCache: true, SharedPrefixes: []string{system}, SharedScope: "clinic/assistant"}, ref.Options{})
	whole := func(r engine.Request) int { cachedOf(t, e, r); return cachedOf(t, e, r) }
	for name, ask := range map[string]func(system, rest, tenant string) engine.Request{
		"a chat": func(system, rest, tenant string) engine.Request {
			return engine.Request{Chat: conversation(system, rest), Tenant: tenant}
		},
		"a prompt": func(system, rest, tenant string) engine.Request {
			return engine.Request{Prompt: prompt(system + rest), Tenant: tenant}
		},
	} {
		own := whole(ask(system, secret, "a"))
		for _, question := range []string{secret, strings.Repeat("Something else entirely. ", 12)} {
			n := cachedOf(t, e, ask(system, question, name+question))
			if n == 0 || n >= own {
				t.Errorf("%s: another tenant has %d tokens restored, the first one %d", name, n, own)
			}
			if m := cachedOf(t, e, ask(system, secret+question, "third"+name+question)); m != n {
				t.Errorf("%s: %d tokens are restored after one question and %d after another", name, n, m)
			}
		}
		other := strings.Repeat("You are another assistant, as nothing here states. ", 10)
		cachedOf(t, e, ask(other, secret, "a"))
		if n := cachedOf(t, e, ask(other, secret, "b")); n != 0 {
			t.Errorf("%s: %d tokens of a prompt that is not shared are restored", name, n)
		}
		salted := ask(system, secret, "b")
		salted.CacheSalt = "mine" + name
		if n := cachedOf(t, e, salted); n != 0 {
			t.Errorf("%s: a request with a salt has %d tokens restored", name, n)
		}
	}
}

// What a deployment shares is found only within its scope, also on the disk that
// deployments of one model share.
func TestAttackADeploymentStatesThePromptsOfAnother(t *testing.T) {
	c := tinymodel.Default()
	c.Context = 4096
	dir, path := t.TempDir(), model(t, c)
	system := strings.Repeat("You are the assistant of the clinic. Be brief and kind. ", 10)
	found := func(epoch, scope, tenant string) int {
		o := engine.Options{ModelPath: path, CacheMemory: mebi, PrefixCache: true, ModelDigest: "sha256:aa", Numerics: "ref 1", SharedPrefixes: []string{system}, SharedScope: scope}
		closed := onDisk(t, dir, epoch, &o)
		e := ready(t, o, ref.Options{})
		n := cachedOf(t, e, engine.Request{Prompt: prompt(system + "Hello."), Tenant: tenant})
		stop(e)
		if err := e.Wait(); err != nil {
			t.Fatal(err)
		}
		closed()
		return n
	}
	found("epoch-1", "clinic", "a")
	if n := found("epoch-2", "bank", "b"); n != 0 {
		t.Errorf("%d tokens of another scope were found", n)
	}
	if n := found("epoch-3", "clinic", "c"); n == 0 {
		t.Error("nothing was found within the scope")
	}
}

// A constraint of one tenant is compiled again for another, so that no time reveals it.
func TestTenantsHaveTheirOwnConstraints(t *testing.T) {
	e := ready(t, engine.Options{}, ref.Options{})
	greedy := sample.Greedy()
	bytes := func(tenant string) int64 {
		ask(t, e, engine.Request{Prompt: prompt("Hello"), Sampling: &greedy, MaxTokens: 4, Tenant: tenant, Constraint: form(grammar.Regex, "[a-f]{4}")})
		return engine.ConstraintBytes(e)
	}
	first := bytes("a")
	if again := bytes("a"); again != first {
		t.Errorf("a constraint takes %d bytes, and %d when it is asked again", first, again)
	}
	if other := bytes("b"); other <= first {
		t.Errorf("the constraint of one tenant serves another: %d bytes, %d before", other, first)
	}
}

// Long answers of one tenant hold every sequence only until another tenant asks, and none
// of them is changed by that.
func TestAttackLongAnswersOfOneTenantHoldEverySequence(t *testing.T) {
	c := tinymodel.Default()
	c.Context = 4096
	o := engine.Options{ModelPath: model(t, c), Sequences: 2}
	e := ready(t, o, ref.Options{}, paced)
	long := engine.Request{Prompt: prompt("The fleet keeps every model."), Sampling: draws(3), MaxTokens: 500, IgnoreEnd: true, Tenant: "a"}
	alone := ask(t, e, long)
	var streams []*engine.Stream
	var begun []answer
	for range 2 {
		s, err := e.Generate(t.Context(), long)
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	for _, s := range streams {
		var a answer
		for len(a.tokens) < 80 {
			ev, err := s.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			a.text, a.tokens = a.text+ev.Text, append(a.tokens, ev.Tokens...)
		}
		begun = append(begun, a)
	}
	ask(t, e, engine.Request{Prompt: prompt("Hello"), Sampling: draws(1), MaxTokens: 3, Tenant: "b"})
	if st := e.Status(); st.Running+st.Queued < 2 || st.Preemptions != 1 {
		t.Errorf("the other tenant waited for the end of an answer: %d run, %d wait, %d gave way", st.Running, st.Queued, st.Preemptions)
	}
	for i, s := range streams {
		if got := begun[i].text + collect(t, s).text; got != alone.text {
			t.Errorf("answer %d is another than alone", i)
		}
	}
}
