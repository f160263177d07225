package keys

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/route"
)

// stored returns a Secret as the API server returns it.
func stored(s *corev1.Secret) *corev1.Secret {
	out := s.DeepCopy()
	out.Data = map[string][]byte{}
	for k, v := range s.StringData {
		out.Data[k] = []byte(v)
	}
	out.StringData = nil
	return out
}

func made(t *testing.T, name string, g Grant) (*corev1.Secret, string) {
	t.Helper()
	s, token, err := NewSecret("keys", name, g)
	if err != nil {
		t.Fatal(err)
	}
	return stored(s), token
}

func TestParseReadsTheGrantOfAKey(t *testing.T) {
	for name, g := range map[string]Grant{
		"everything": {Models: []string{"*"}},
		"all of it": {Models: []string{"smollm2", "team-a/chat.v2", "Qwen3:8b", "Qwen/Qwen3-8B"}, ModelNamespaces: []string{"team-b", "team-c"},
			Expires: time.Date(2030, 1, 31, 0, 0, 0, 0, time.UTC), RequestsPerMinute: 60, TokensPerMinute: 100000, Priority: -5, StrictFields: true, Tenant: "team-a"},
		"namespaces alone": {ModelNamespaces: []string{"a"}, RequestsPerMinute: 1},
	} {
		t.Run(name, func(t *testing.T) {
			s, token := made(t, "chat.bot-1", g)
			k, err := parse(s)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(g, k.Grant); d != "" || k.Name != "chat.bot-1" {
				t.Errorf("%s: %s", k.Name, d)
			}
			if k.digest != sha256.Sum256([]byte(token)) {
				t.Error("the digest is another key's")
			}
		})
	}
}

// The Secret must be useless to a reader: it holds no token.
func TestTheSecretHoldsNoKey(t *testing.T) {
	s, token, err := NewSecret("keys", "k", Grant{Models: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	random := token[strings.LastIndex(token, "_")+1:]
	for member, value := range s.StringData {
		if strings.Contains(value, random) {
			t.Errorf("%s holds the key", member)
		}
	}
	if _, other, _ := NewSecret("keys", "k", Grant{Models: []string{"*"}}); other == token || len(random) < 26 {
		t.Error("keys are not random")
	}
}

func TestABrokenSecretIsRefused(t *testing.T) {
	good, token := made(t, "k", Grant{Models: []string{"m"}, RequestsPerMinute: 1})
	with := func(member, value string) func(*corev1.Secret) {
		return func(s *corev1.Secret) { s.Data[member] = []byte(value) }
	}
	without := func(member string) func(*corev1.Secret) { return func(s *corev1.Secret) { delete(s.Data, member) } }
	for name, tc := range map[string]struct {
		change func(*corev1.Secret)
		names  string
	}{
		"another type":                 {change: func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }, names: "type"},
		"a name too long":              {change: func(s *corev1.Secret) { s.Name = strings.Repeat("x", 64) }, names: "name"},
		"no digest":                    {change: without("sha256"), names: "sha256"},
		"half a digest":                {change: with("sha256", "00ff"), names: "sha256"},
		"a digest too long":            {change: with("sha256", hex.EncodeToString(make([]byte, 33))), names: "sha256"},
		"the key for its digest":       {change: with("sha256", token), names: "sha256"},
		"a member that is no known":    {change: with("expire", "2030-01-01T00:00:00Z"), names: "expire "},
		"no word of its end":           {change: without("expires"), names: "expires"},
		"an end that is no time":       {change: with("expires", "tomorrow"), names: "expires"},
		"an empty end":                 {change: with("expires", ""), names: "expires"},
		"the zero of times":            {change: with("expires", "0001-01-01T00:00:00Z"), names: "expires"},
		"nothing to ask":               {change: without("models"), names: "models"},
		"only blanks to ask":           {change: with("models", " ,\n"), names: "models"},
		"a model with two slashes":     {change: with("models", "a/b/c"), names: "entry 1"},
		"a model without namespace":    {change: with("models", "m,/b"), names: "entry 2"},
		"a pattern":                    {change: with("models", "team-*"), names: "entry 1"},
		"the key for a model":          {change: with("models", token+"="), names: "entry 1"},
		"too many models":              {change: with("models", strings.Repeat("m,", maxEntries+1)), names: "entries"},
		"too many namespaces":          {change: with("modelNamespaces", strings.Repeat("n,", maxEntries+1)), names: "entries"},
		"a namespace of all":           {change: with("modelNamespaces", "*"), names: "modelNamespaces entry 1"},
		"no requests a minute":         {change: with("requestsPerMinute", "0"), names: "requestsPerMinute"},
		"requests that are no word":    {change: with("requestsPerMinute", "60/s"), names: "requestsPerMinute"},
		"tokens below zero":            {change: with("tokensPerMinute", "-1"), names: "tokensPerMinute"},
		"a priority that is no number": {change: with("priority", "high"), names: "priority must be a whole number from -1000 to 1000"},
		"a priority beyond its bounds": {change: with("priority", "-1001"), names: "priority must be from -1000 to 1000"},
		"neither strict nor not":       {change: with("strictFields", "maybe"), names: "strictFields must be true or false"},
		"a tenant without a name":      {change: with("tenant", " "), names: "tenant must not be empty"},
		"a tenant that is a path":      {change: with("tenant", "a/b"), names: "tenant must consist"},
		"tokens beyond reason":         {change: with("tokensPerMinute", "1000000001"), names: "tokensPerMinute"},
	} {
		t.Run(name, func(t *testing.T) {
			s := good.DeepCopy()
			tc.change(s)
			_, err := parse(s)
			if !errors.Is(err, errInvalid) || !strings.Contains(err.Error(), tc.names) {
				t.Errorf("Parse = %v, want %q named", err, tc.names)
			}
			if err != nil && strings.Contains(err.Error(), token) {
				t.Error("the refusal contains the key")
			}
		})
	}
	if _, err := parse(good); err != nil {
		t.Error(err)
	}
}

func TestKeyAtEveryBoundIsUsable(t *testing.T) {
	longest := strings.Repeat("x", maxName)
	for name, g := range map[string]Grant{
		"models":                    {Models: slices.Repeat([]string{"m"}, maxEntries)},
		"namespaces":                {ModelNamespaces: slices.Repeat([]string{"n"}, maxEntries)},
		"limits":                    {Models: []string{"m"}, RequestsPerMinute: maxPerMinute, TokensPerMinute: maxPerMinute},
		"the least urgent priority": {Models: []string{"m"}, Priority: openai.MostPriority},
		"the most urgent priority":  {Models: []string{"m"}, Priority: -openai.MostPriority},
		"one per minute":            {Models: []string{"m"}, RequestsPerMinute: 1, TokensPerMinute: 1},
	} {
		t.Run(name, func(t *testing.T) {
			store, _ := newStore(t)
			secret, token := made(t, longest, g)
			store.Set(secret)
			if k, why := store.Find(token); k == nil || why != "" {
				t.Errorf("the key is refused: %q", why)
			}
		})
	}
	if name, ok := nameIn(prefix + longest + "_" + strings.Repeat("A", maxRandom)); !ok || name != longest {
		t.Errorf("the longest token is of %q, %v", name, ok)
	}
}

func TestNoKeyIsMadeThatWouldBeRefused(t *testing.T) {
	for name, g := range map[string]Grant{
		"":                      {Models: []string{"m"}},
		"Upper":                 {Models: []string{"m"}},
		"under_score":           {Models: []string{"m"}},
		strings.Repeat("x", 64): {Models: []string{"m"}},
		"nothing":               {},
		"less":                  {Models: []string{"m"}, RequestsPerMinute: -1},
		"a-space":               {Models: []string{"m n"}},
	} {
		if _, _, err := NewSecret("keys", name, g); !errors.Is(err, errInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestWhatAKeyMayAsk(t *testing.T) {
	chat, other := route.Key{Namespace: "team-a", Name: "chat"}, route.Key{Namespace: "team-b", Name: "chat"}
	for name, tc := range map[string]struct {
		grant Grant
		name  string
		of    route.Key
		want  bool
	}{
		"the name that it lists":                        {grant: Grant{Models: []string{"gpt"}}, name: "gpt", of: chat, want: true},
		"another name":                                  {grant: Grant{Models: []string{"gpt"}}, name: "gpt-2", of: chat, want: false},
		"a listed name does not open the full one":      {grant: Grant{Models: []string{"gpt"}}, name: "team-a/chat", of: chat, want: false},
		"a deployment by its full name":                 {grant: Grant{Models: []string{"team-a/chat"}}, name: "team-a/chat", of: chat, want: true},
		"a deployment by any of its names":              {grant: Grant{Models: []string{"team-a/chat"}}, name: "gpt", of: chat, want: true},
		"a name that passed to another deployment":      {grant: Grant{Models: []string{"team-a/chat"}}, name: "gpt", of: other, want: false},
		"every deployment of a namespace":               {grant: Grant{ModelNamespaces: []string{"team-a"}}, name: "gpt", of: chat, want: true},
		"nothing of another namespace":                  {grant: Grant{ModelNamespaces: []string{"team-a"}}, name: "team-b/chat", of: other, want: false},
		"a namespace is no prefix":                      {grant: Grant{ModelNamespaces: []string{"team"}}, name: "team-a/chat", of: chat, want: false},
		"everything":                                    {grant: Grant{Models: []string{"*"}}, name: "team-b/chat", of: other, want: true},
		"a bare name that looks like the deployment's":  {grant: Grant{Models: []string{"chat"}}, name: "team-b/chat", of: other, want: false},
		"a served name with a slash":                    {grant: Grant{Models: []string{"Qwen/Qwen3-8B"}}, name: "Qwen/Qwen3-8B", of: chat, want: true},
		"another one":                                   {grant: Grant{Models: []string{"Qwen/Qwen3-8B"}}, name: "Qwen/Qwen3-4B", of: chat, want: false},
		"a deployment by its name with a slash":         {grant: Grant{Models: []string{"team-a/chat"}}, name: "Qwen/Qwen3-8B", of: chat, want: true},
		"a full name is not compared with what is said": {grant: Grant{Models: []string{"team-a/chat"}}, name: "team-a/chat", of: other, want: false},
	} {
		t.Run(name, func(t *testing.T) {
			k := &Key{access: tc.grant.access()}
			if got := k.Allows(tc.name, tc.of); got != tc.want {
				t.Errorf("Allows(%q, %s) = %v", tc.name, tc.of, got)
			}
		})
	}
}

// TestAKeyOfManyModelsIsChecked with as little work as one of a single model: for each request,
// and for each model of a list.
func TestAKeyOfManyModelsIsChecked(t *testing.T) {
	g := Grant{}
	for i := range maxEntries {
		g.Models = append(g.Models, fmt.Sprint("team-a/chat-", i))
		g.ModelNamespaces = append(g.ModelNamespaces, fmt.Sprint("team-", i))
	}
	store, _ := newStore(t)
	secret, token := made(t, "k", g)
	store.Set(secret)
	k, why := store.Find(token)
	if why != "" {
		t.Fatal(why)
	}
	of := route.Key{Namespace: "other", Name: "a-name-that-is-longer-than-what-fits-on-the-stack"}
	if n := testing.AllocsPerRun(10, func() {
		if k.Allows("gpt", of) {
			t.Error("it allows what it does not list")
		}
	}); n > 0 {
		t.Errorf("a check allocates %v objects", n)
	}
}

func TestBearer(t *testing.T) {
	for name, tc := range map[string]struct {
		given []string
		want  string
	}{
		"as OpenAI's clients send it": {given: []string{"Bearer mf_k_X"}, want: "mf_k_X"},
		"in any case, with spaces":    {given: []string{"bearer   mf_k_X "}, want: "mf_k_X"},
		"nothing":                     {want: ""},
		"another scheme":              {given: []string{"Basic mf_k_X"}, want: ""},
		"no scheme":                   {given: []string{"mf_k_X"}, want: ""},
		"two of them":                 {given: []string{"Bearer mf_k_X", "Bearer mf_k_Y"}, want: ""},
	} {
		if got := Bearer(http.Header{"Authorization": tc.given}); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	for name, tc := range map[string]struct {
		header http.Header
		want   string
	}{
		"as Anthropic's clients send it":  {header: http.Header{"X-Api-Key": {"mf_k_X "}}, want: "mf_k_X"},
		"both, of which one is meant":     {header: http.Header{"X-Api-Key": {"mf_k_X"}, "Authorization": {"Bearer mf_k_Y"}}, want: "mf_k_Y"},
		"two of them":                     {header: http.Header{"X-Api-Key": {"mf_k_X", "mf_k_Y"}}, want: ""},
		"an unfit one is not passed over": {header: http.Header{"X-Api-Key": {"mf_k_X"}, "Authorization": {"Basic mf_k_Y"}}, want: ""},
	} {
		if got := Bearer(tc.header); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// clock is a manual clock.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func newStore(t *testing.T) (*Store, *clock) {
	t.Helper()
	c := &clock{at: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	return newTestStore(t, c), c
}

func TestWhoHoldsAKey(t *testing.T) {
	s, c := newStore(t)
	secret, token := made(t, "a", Grant{Models: []string{"m"}, Expires: c.at.Add(time.Hour)})
	s.Set(secret)
	_, others := made(t, "b", Grant{Models: []string{"m"}})
	_, again := made(t, "a", Grant{Models: []string{"m"}})
	for name, tc := range map[string]struct {
		token string
		want  Reason
	}{
		"the holder":                   {token: token, want: ""},
		"no token":                     {want: ReasonMissing},
		"a key of no Secret":           {token: others, want: ReasonUnknown},
		"another key of that name":     {token: again, want: ReasonUnknown},
		"the name alone":               {token: "mf_a_", want: ReasonUnknown},
		"half a key":                   {token: token[:len(token)-1], want: ReasonUnknown},
		"more than a key":              {token: token + "A", want: ReasonUnknown},
		"another prefix":               {token: "sk" + token[2:], want: ReasonUnknown},
		"no name":                      {token: "mf__" + token[5:], want: ReasonUnknown},
		"a digest":                     {token: string(secret.Data["sha256"]), want: ReasonUnknown},
		"something of 64 KiB":          {token: "mf_a_" + strings.Repeat("A", 64<<10), want: ReasonUnknown},
		"another name, the same chars": {token: "mf_b_" + token[5:], want: ReasonUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			k, why := s.Find(tc.token)
			if why != tc.want || (k != nil) != (why == "") {
				t.Errorf("Find = %v, %q", k, why)
			}
		})
	}
	c.at = c.at.Add(time.Hour)
	if k, why := s.Find(token); why != ReasonExpired || k == nil {
		t.Errorf("after its end: %v, %q", k, why)
	}
	if k, why := s.Find(again); why != ReasonUnknown || k != nil {
		t.Errorf("who does not hold it learns that it has expired: %v, %q", k, why)
	}
}

func TestAKeyChangesWithItsSecret(t *testing.T) {
	s, _ := newStore(t)
	secret, token := made(t, "a", Grant{Models: []string{"m"}, RequestsPerMinute: 2})
	find := func() *Key { k, _ := s.Find(token); return k }
	s.Set(secret)
	if k := find(); k == nil || !k.TakeRequest(s.Now()).OK {
		t.Fatal("a new key is refused")
	}
	before := find()
	s.Set(secret)
	if find() != before {
		t.Error("the same Secret, read again, changed the key")
	}

	wider := secret.DeepCopy()
	wider.Data["models"] = []byte("m,n")
	s.Set(wider)
	if k := find(); k == nil || !k.Allows("n", route.Key{}) || k.TakeRequest(s.Now()).Remaining != 0 {
		t.Error("a change of models is not taken, or gave back what was used")
	}

	for _, member := range []string{"requestsPerMinute", "tokensPerMinute"} {
		raised := secret.DeepCopy()
		raised.Data[member] = []byte("7")
		s.Set(raised)
		k := find()
		if limits := []int64{k.TakeRequest(s.Now()).Limit, k.TakeTokens(1, s.Now()).Limit}; !slices.Contains(limits, 7) {
			t.Errorf("%s is 7 in the Secret, and the limits are %v", member, limits)
		}
		s.Set(secret)
	}
}

func TestAKeyGoesWithItsSecret(t *testing.T) {
	s, _ := newStore(t)
	secret, token := made(t, "a", Grant{Models: []string{"m"}})
	other, otherToken := made(t, "b", Grant{Models: []string{"*"}})
	s.Set(other)
	s.Set(secret)
	find := func() *Key { k, _ := s.Find(token); return k }
	if find() == nil {
		t.Fatal("a new key is refused")
	}

	broken := secret.DeepCopy()
	broken.Data["models"] = []byte("m n/")
	s.Set(broken)
	if find() != nil {
		t.Error("a broken Secret still opens what it once did")
	}
	s.Set(secret)
	if find() == nil {
		t.Error("a mended Secret is refused")
	}

	going := secret.DeepCopy()
	now := metav1.Now()
	going.DeletionTimestamp, going.Finalizers = &now, []string{"x/y"}
	s.Set(going)
	if find() != nil {
		t.Error("a Secret that was deleted still opens something while a finalizer holds it")
	}
	s.Set(secret)
	s.Delete("a")
	if find() != nil {
		t.Error("a key outlives its Secret")
	}
	if k, why := s.Find(otherToken); k == nil {
		t.Errorf("another key noticed: %q", why)
	}
}

func TestLimits(t *testing.T) {
	c := &clock{at: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	k := &Key{Grant: Grant{RequestsPerMinute: 3, TokensPerMinute: 600}}
	k.budget = newBudget(&k.Grant, c.at)
	want := func(what string, got, want Verdict) {
		t.Helper()
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", what, d)
		}
	}
	for left := int64(2); left >= 0; left-- {
		want("within", k.TakeRequest(c.at), Verdict{OK: true, Left: Left{Limit: 3, Remaining: left, Reset: time.Duration(3-left) * 20 * time.Second}})
	}
	want("beyond", k.TakeRequest(c.at), Verdict{Left: Left{Limit: 3, Reset: time.Minute}, Wait: 20 * time.Second})
	c.at = c.at.Add(5 * time.Second)
	want("later", k.TakeRequest(c.at), Verdict{Left: Left{Limit: 3, Reset: 55 * time.Second}, Wait: 15 * time.Second})
	c.at = c.at.Add(15 * time.Second)
	want("after the wait", k.TakeRequest(c.at), Verdict{OK: true, Left: Left{Limit: 3, Reset: time.Minute}})
	c.at = c.at.Add(time.Hour)
	want("full again, not more", k.TakeRequest(c.at), Verdict{OK: true, Left: Left{Limit: 3, Remaining: 2, Reset: 20 * time.Second}})

	want("tokens", k.TakeTokens(500, c.at), Verdict{OK: true, Left: Left{Limit: 600, Remaining: 100, Reset: 50 * time.Second}})
	want("tokens beyond", k.TakeTokens(200, c.at), Verdict{Left: Left{Limit: 600, Remaining: 100, Reset: 50 * time.Second}, Wait: 10 * time.Second})
	want("a minute's, once it is there", k.TakeTokens(600, c.at), Verdict{Left: Left{Limit: 600, Remaining: 100, Reset: 50 * time.Second}, Wait: 50 * time.Second})
	want("more than a minute's", k.TakeTokens(601, c.at), Verdict{Left: Left{Limit: 600, Remaining: 100, Reset: 50 * time.Second}, Wait: 50*time.Second + 100*time.Millisecond, Never: true})
	k.AddTokens(700, c.at) // the response was long: the key is at -600
	want("what is owed is waited for", k.TakeTokens(1, c.at), Verdict{Left: Left{Limit: 600, Reset: 2 * time.Minute}, Wait: time.Minute + 100*time.Millisecond})
	k.AddTokens(-5000, c.at)
	want("what is given back fills no more than the limit", k.TakeTokens(600, c.at), Verdict{OK: true, Left: Left{Limit: 600, Reset: time.Minute}})

	free := &Key{}
	free.budget = newBudget(&free.Grant, c.at)
	free.AddTokens(1<<40, c.at)
	want("no limit", free.TakeTokens(1<<40, c.at), Verdict{OK: true})
	want("no limit of requests", free.TakeRequest(c.at), Verdict{OK: true})
}

// TestMetricsNameKeysAndNothingElse: the number of series is bounded, and those of a
// deleted key are removed.
func TestMetricsNameKeysAndNothingElse(t *testing.T) {
	s, _ := newStore(t)
	for i := range maxLabels + 2 {
		secret, token := made(t, "k"+hex.EncodeToString([]byte{byte(i >> 8), byte(i)}), Grant{Models: []string{"m"}})
		s.Set(secret)
		k, _ := s.Find(token)
		s.CountRequest(k)
	}
	if n := len(labels(t, s)); n != maxLabels+1 { // those beyond share one
		t.Errorf("%d series", n)
	}
	k := s.keys["k0000"]
	s.Delete("k0000")
	s.CountRequest(k) // the request was running when the key was revoked
	if got := labels(t, s); len(got) != maxLabels || got["k0000"] {
		t.Errorf("a revoked key still has a series, of %d", len(got))
	}
	secret, _ := made(t, "young", Grant{Models: []string{"m"}})
	s.Set(secret)
	s.CountRequest(s.keys["young"])
	if !labels(t, s)["young"] {
		t.Error("the room of a revoked key is not used again")
	}
	s.CountRefusal(nil, ReasonUnknown)
	bad := secret.DeepCopy()
	bad.Name = "bad"
	bad.Data = maps.Clone(bad.Data)
	delete(bad.Data, "expires")
	s.Set(bad)
	if got := values(t, s, "metalfleet_gateway_api_keys"); got["good"] != maxLabels+2 || got["refused"] != 1 {
		t.Errorf("keys %v", got)
	}
}

// TestAttackAWrongKeyCostsBoundedWork: a token that is too long is neither looked up nor
// hashed.
func TestAttackAWrongKeyCostsBoundedWork(t *testing.T) {
	if name, ok := nameIn(NewToken("a.b-c")); !ok || name != "a.b-c" {
		t.Errorf("a key of ours is of %q, %v", name, ok)
	}
	for _, token := range []string{"sk_a_A", "mf_a_" + strings.Repeat("A", maxToken), "mf_" + strings.Repeat("a", maxName+1) + "_A", strings.Repeat("_", 1<<20)} {
		if name, ok := nameIn(token); ok {
			t.Errorf("%d bytes are taken for a key of %.80q", len(token), name)
		}
	}
}

// Keys of one tenant share it. Any other key is its own tenant, even if it has the same
// name as a deleted key.
func TestAKeyNamesItsTenant(t *testing.T) {
	store := NewStore(Options{Registry: prometheus.NewRegistry(), Log: logr.Discard()})
	tenant := func(name, uid, tenant string) string {
		s, token := made(t, name, Grant{Models: []string{"*"}, Tenant: tenant})
		s.UID = types.UID(uid)
		store.Set(s)
		k, why := store.Find(token)
		if why != "" {
			t.Fatal(why)
		}
		return k.TenantID()
	}
	one, again, other := tenant("k", "uid-1", ""), tenant("k", "uid-2", ""), tenant("l", "uid-3", "")
	if one == again || one == other || again == other {
		t.Errorf("three keys are the tenants %q, %q and %q", one, again, other)
	}
	a, b := tenant("k", "uid-4", "team"), tenant("l", "uid-5", "team")
	if a != b || a == one {
		t.Errorf("two keys of a tenant are %q and %q", a, b)
	}
	secret, token := made(t, "k", Grant{Models: []string{"*"}})
	for _, uid := range []types.UID{"old", "new"} { // the same bytes, restored from a file
		secret.UID = uid
		store.Set(secret)
		if k, _ := store.Find(token); k.TenantID() != "key/k/"+string(uid) {
			t.Errorf("the tenant is %q", k.TenantID())
		}
	}
}

// TestAttackADebtThatNeverEnds: what a Mac reports keeps a key out for minutes, not months.
func TestAttackADebtThatNeverEnds(t *testing.T) {
	now := time.Now()
	b := newBucket(1000, now)
	b.add(1<<32, now)
	if wait, ok := b.take(1, now); ok || wait > (maxDebt+1)*time.Minute {
		t.Errorf("after a long answer the next request waits %s", wait)
	}
	b.add(1, now)
	if wait := b.until(0); wait > maxDebt*time.Minute {
		t.Errorf("a small answer after it makes %s of debt", wait)
	}
}
