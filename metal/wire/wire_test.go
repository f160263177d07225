package wire

import (
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func ptr[T any](v T) *T { return &v }

// samples is one filled value of each message: a renumbered or retyped field
// changes the golden bytes.
var samples = map[string]proto.Message{
	"hello-request":  &HelloRequest{ProtocolVersions: []uint32{1}},
	"hello-response": &HelloResponse{ProtocolVersion: 1, EngineVersion: "v1", ReplicaUid: "u", Epoch: 2, ConfigHash: "h", Pid: 3, Backend: "ref"},
	"watch-request":  &WatchRequest{IntervalMilliseconds: 500},
	"status": &Status{State: State_STATE_READY, Reason: "r", Message: "m", Load: &LoadProgress{BytesDone: 1, BytesTotal: 2},
		Memory:      &Memory{WeightsBytes: 1, KvInUseBytes: 2, ActiveBytes: 3, PooledBytes: 4, PrefixCacheBytes: 5},
		Activity:    &Activity{Running: 1, Queued: 2, Steps: 3, PromptTokensTotal: 4, GeneratedTokensTotal: 5, IterationMilliseconds: 6},
		Guard:       &Guard{Active: true, InactiveReason: "i", LimitsSequence: 1, HeadroomRequest: 2, HeadroomBytes: 3, ThrottledChunks: 4, RefusedRequests: 5, AbortedPrefills: 6},
		Task:        Task_TASK_RERANK,
		PrefixCache: &PrefixCache{Bytes: 1, BudgetBytes: 2, Blocks: 3, Hits: 4, Misses: 5, RestoredTokens: 6, Saved: 7, Dropped: 8, Evicted: 9, QueriedTokens: 10}},
	"embed-request":   &EmbedRequest{Id: "i", Texts: []string{"a", "b"}, Prompt: "p", Instruction: "n", Truncate: true, TokenLists: []*TokenList{{Ids: []int32{1, 300}}}, InputType: "t", MaxTokens: 5, Tenant: "x"},
	"embed-response":  &EmbedResponse{Vectors: []*Vector{{Values: []float32{0.5, 1}}}, Usage: &Usage{PromptTokens: 1}},
	"rerank-request":  &RerankRequest{Id: "i", Query: "q", Documents: []string{"a", "b"}, Instruction: "n", Truncate: true, MaxTokens: 5, Tenant: "x"},
	"rerank-response": &RerankResponse{Scores: []float32{0.5, 1}, Usage: &Usage{PromptTokens: 1}},
	"generate-chat": &GenerateRequest{Id: "i", Input: &GenerateRequest_Chat{Chat: &Chat{Messages: []*ChatMessage{{Role: "user", Content: "c", Name: "n", ExtraJson: "{}"}}, TemplateArgumentsJson: "{}", ToolsJson: "[]", SplitReasoning: true}},
		Sampling: &Sampling{Temperature: ptr(float32(0.5)), TopP: ptr(float32(0.9)), MinP: ptr(float32(0.1)), TopK: ptr(int32(5)), Seed: ptr(int64(7)), FrequencyPenalty: ptr(float32(0.2)), PresencePenalty: ptr(float32(0.3)),
			LogitBias: map[int32]float32{7: -100, 8: 1.5}},
		MaxTokens: 9, Stop: []string{"s"}, Priority: -3, TopLogprobs: ptr(int32(20)), Progress: true},
	"generate-image": &GenerateRequest{Input: &GenerateRequest_Chat{Chat: &Chat{Messages: []*ChatMessage{{Role: "user",
		Parts: []*ContentPart{{Part: &ContentPart_Text{Text: "t"}}, {Part: &ContentPart_Image{Image: []byte{0x89, 0xff}}}}}}}}},
	"generate-tools":   &GenerateRequest{Input: &GenerateRequest_Chat{Chat: &Chat{ToolsJson: "[]", Calls: &Calls{Required: true, Name: "n", Single: true, Strict: true}, ReasoningEffort: "low"}}},
	"event-progress":   &GenerateEvent{Event: &GenerateEvent_Delta{Delta: &Delta{Progress: &Progress{ProcessedTokens: 1, CachedTokens: 2}}}},
	"event-calls":      &GenerateEvent{Event: &GenerateEvent_Delta{Delta: &Delta{Calls: []*CallDelta{{Name: "n", Arguments: "{", Ended: true, Written: "w"}, {Arguments: "}"}}}}},
	"generate-prompt":  &GenerateRequest{Input: &GenerateRequest_Prompt{Prompt: "p"}},
	"generate-tenant":  &GenerateRequest{Input: &GenerateRequest_Prompt{Prompt: "p"}, Tenant: "t", CacheSalt: "s"},
	"generate-adapter": &GenerateRequest{Input: &GenerateRequest_Prompt{Prompt: "p"}, Adapter: "a"},
	"generate-echo": &GenerateRequest{Input: &GenerateRequest_Prompt{Prompt: "p"}, Sampling: &Sampling{RepetitionPenalty: ptr(float32(1.25))}, MinTokens: 1, IgnoreEos: true,
		StopTokenIds: []int32{2, 300}, Echo: true, PromptOnly: true},
	"event-prompt":    &GenerateEvent{Event: &GenerateEvent_Delta{Delta: &Delta{Prompt: &PromptDelta{Text: "t", Logprobs: []*TokenLogprobs{{Chosen: &Logprob{Token: 5, Logprob: -0.5, Text: []byte("t")}}}}}}},
	"event-full":      &GenerateEvent{Event: &GenerateEvent_Finished{Finished: &Finished{Reason: FinishReason_FINISH_REASON_LENGTH, Usage: &Usage{GeneratedTokens: 2, ReasoningTokens: 1}, ContextFull: true}}},
	"generate-tokens": &GenerateRequest{Input: &GenerateRequest_Tokens{Tokens: &TokenList{Ids: []int32{1, 2}}}},
	"generate-regex":  &GenerateRequest{Constraint: &Constraint{Form: &Constraint_Regex{Regex: "r"}, Param: "p"}},
	"generate-choice": &GenerateRequest{Constraint: &Constraint{Form: &Constraint_Choice{Choice: &Choice{Texts: []string{"a", "b"}}}}},
	"generate-schema": &GenerateRequest{Constraint: &Constraint{Form: &Constraint_JsonSchema{JsonSchema: "s"}}},
	"generate-ebnf":   &GenerateRequest{Constraint: &Constraint{Form: &Constraint_Grammar{Grammar: "g"}}},
	"generate-object": &GenerateRequest{Constraint: &Constraint{Form: &Constraint_JsonObject{JsonObject: true}}},
	"event-admitted":  &GenerateEvent{Event: &GenerateEvent_Admitted{Admitted: &Admitted{PromptTokens: 4, CachedTokens: 1}}},
	"event-delta": &GenerateEvent{Event: &GenerateEvent_Delta{Delta: &Delta{Text: "t", Reasoning: "r", Tokens: []int32{5},
		Logprobs: []*TokenLogprobs{{Chosen: &Logprob{Token: 5, Logprob: -0.5, Text: []byte("t")}, Top: []*Logprob{{Token: 6, Logprob: -0.25, Text: []byte{0xf0}}}}}}}},
	"event-finished": &GenerateEvent{Event: &GenerateEvent_Finished{Finished: &Finished{Reason: FinishReason_FINISH_REASON_ERROR, Usage: &Usage{PromptTokens: 1, GeneratedTokens: 2, CachedTokens: 3}, Error: &Refusal{Code: Code_CODE_MEMORY, Message: "m", UsedBytes: 1, NeededBytes: 2, LimitBytes: 3, RetryAfterMilliseconds: 4, Param: "p"}, Stop: "s"}}},
	"limits": &Limits{MemoryBytes: 1, CacheBytes: 2, PausePrefill: true, Sequence: 3, FootprintBytes: 4, HeadroomBytes: 5, HeadroomKnown: true,
		HeadroomAnswered: 6, CanMakeRoom: true},
	"set-limits":    &SetLimitsResponse{Memory: &Memory{ActiveBytes: 1}},
	"trim-request":  &TrimRequest{PrefixCache: true},
	"trim-response": &TrimResponse{BytesReclaimed: 1, Memory: &Memory{PooledBytes: 2}},
	"cache-lease":   &CacheLease{Directory: "d", Epoch: "e", GrantedBytes: 1, Final: true, Answers: 2},
	"cache-origin":  &CacheReport{Origin: &CacheOrigin{Model: "m", Numerics: "n", Layout: "l"}},
	"cache-report": &CacheReport{Sequence: 1, Epoch: "e", Persisted: []*CacheFile{{Key: []byte{1}, Bytes: 2}}, SpentBytes: 3, Touched: [][]byte{{4}}, Damaged: [][]byte{{5}},
		WantedBytes: 6, LeastBytes: 7, Last: true, Counters: &CacheCounters{Accepted: 1, Queued: 2, QueuedBytes: 3, Persisted: 4, PersistedBytes: 5, PayloadBytes: 6,
			Dropped: map[string]int64{"grant": 7}, Failed: 8, FullDisk: 9, WrittenBytes: 10, CopiedBytes: 11, Known: 12, Read: 13, Pending: 14, Missed: 15, Damaged: 16}},
	"abort-request":     &AbortRequest{Reason: "r"},
	"abort-response":    &AbortResponse{Aborted: 1},
	"shutdown-request":  &ShutdownRequest{DrainMilliseconds: 1},
	"shutdown-response": &ShutdownResponse{Cancelled: 1},
}

func TestGoldenBytesOfEveryMessage(t *testing.T) {
	for name, m := range samples {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		path, got := filepath.Join("testdata", name+".hex"), hex.EncodeToString(b)+"\n"
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: wire bytes changed\n got %s want %s", name, got, want)
		}
	}
}

func TestRefusalTravelsInAnError(t *testing.T) {
	err := Refuse(&Refusal{Code: Code_CODE_MEMORY, Message: "too large", NeededBytes: 9})
	if r := RefusalOf(err); r.GetCode() != Code_CODE_MEMORY || r.GetNeededBytes() != 9 {
		t.Errorf("got %v", r)
	}
	if r := RefusalOf(os.ErrClosed); r != nil {
		t.Errorf("a refusal was found in %v: %v", os.ErrClosed, r)
	}
}

// TestEveryCodeTravelsAsItself: each number is fixed, and each code survives
// the way through a gRPC error.
func TestEveryCodeTravelsAsItself(t *testing.T) {
	numbers := map[Code]int32{Code_CODE_INVALID: 1, Code_CODE_CONTEXT_LENGTH: 2, Code_CODE_MEMORY: 3, Code_CODE_QUEUE_FULL: 4,
		Code_CODE_NOT_READY: 5, Code_CODE_CANCELLED: 6, Code_CODE_INTERNAL: 7, Code_CODE_ABORTED: 8, Code_CODE_NO_ROOM: 9}
	for c, n := range numbers {
		if r := RefusalOf(Refuse(&Refusal{Code: c, Message: "m"})); r.GetCode() != c || int32(c) != n {
			t.Errorf("%v (%d, want %d) arrived as %v", c, int32(c), n, r)
		}
	}
	if len(numbers) != len(Code_name)-1 { // all but CODE_UNSPECIFIED
		t.Errorf("%d codes are tested, there are %d", len(numbers), len(Code_name)-1)
	}
	for c, want := range map[Code]codes.Code{Code_CODE_ABORTED: codes.Aborted, Code_CODE_NO_ROOM: codes.ResourceExhausted, Code_CODE_MEMORY: codes.ResourceExhausted} {
		if got := status.Code(Refuse(&Refusal{Code: c})); got != want {
			t.Errorf("%v is gRPC's %v, want %v", c, got, want)
		}
	}
}

const goodConfig = `{"replicaUID":"u","epoch":1,"modelPath":"m.gguf","modelDigest":"d","contextTokens":16,"sequences":1,"cacheTokens":32,"limitBytes":1}`

func TestConfigRefusesWhatCannotBeMeant(t *testing.T) {
	if _, err := ReadConfig(strings.NewReader(goodConfig)); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string][2]string{
		"an unknown field":           {`"epoch":1`, `"epoch":1,"colour":"red"`},
		"epoch zero":                 {`"epoch":1`, `"epoch":0`},
		"no model":                   {`"m.gguf"`, `""`},
		"no replica":                 {`"u"`, `""`},
		"too few cache tokens":       {`"cacheTokens":32`, `"cacheTokens":8`},
		"a queue below nothing":      {`"limitBytes":1`, `"limitBytes":1,"cacheQueueBytes":-1`},
		"a disk for no model":        {`"modelDigest":"d"`, `"cacheQueueBytes":1`},
		"no limit":                   {`"limitBytes":1`, `"limitBytes":0`},
		"a temperature of three":     {`"limitBytes":1`, `"limitBytes":1,"sampling":{"temperature":3}`},
		"a share above all":          {`"limitBytes":1`, `"limitBytes":1,"sampling":{"topP":1.5}`},
		"a penalty of nothing":       {`"limitBytes":1`, `"limitBytes":1,"sampling":{"repetitionPenalty":0}`},
		"fewer than no tokens":       {`"limitBytes":1`, `"limitBytes":1,"sampling":{"limitTokens":-1}`},
		"an unknown default":         {`"limitBytes":1`, `"limitBytes":1,"sampling":{"heat":1}`},
		"a context without tokens":   {`"contextTokens":16`, `"contextTokens":0`},
		"an adapter of no name":      {`"limitBytes":1`, `"limitBytes":1,"adapters":[{"name":"","path":"p","digest":"d"}]`},
		"an adapter of no digest":    {`"limitBytes":1`, `"limitBytes":1,"adapters":[{"name":"a","path":"p"}]`},
		"two adapters of one name":   {`"limitBytes":1`, `"limitBytes":1,"adapters":[{"name":"a","path":"p","digest":"d"},{"name":"a","path":"q","digest":"e"}]`},
		"text that is not an object": {goodConfig, `[]`},
	} {
		if _, err := ReadConfig(strings.NewReader(strings.Replace(goodConfig, edit[0], edit[1], 1))); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestConfigHashSeesEveryField(t *testing.T) {
	base, err := ReadConfig(strings.NewReader(goodConfig))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{base.Hash(): true}
	for _, change := range []func(*Config){
		func(c *Config) { c.ReplicaUID = "x" }, func(c *Config) { c.Epoch++ }, func(c *Config) { c.ModelPath = "x" },
		func(c *Config) { c.ModelDigest = "x" }, func(c *Config) { c.Backend = "x" }, func(c *Config) { c.Activations = "8bit" }, func(c *Config) { c.ContextTokens++ },
		func(c *Config) { c.Sequences++ }, func(c *Config) { c.CacheTokens++ }, func(c *Config) { c.LimitBytes++ },
		func(c *Config) { c.ChatTemplate = "x" }, func(c *Config) { c.Sampling = &SamplingPolicy{Temperature: ptr(0.5)} },
		func(c *Config) { c.Sampling = &SamplingPolicy{Temperature: ptr(0.25)} }, func(c *Config) { c.Sampling = &SamplingPolicy{LimitTokens: 9} },
		func(c *Config) { c.Adapters = []Adapter{{Name: "a", Path: "p", Digest: "d"}} }, func(c *Config) { c.Namespace = "x" },
	} {
		c := base
		change(&c)
		if seen[c.Hash()] {
			t.Errorf("a changed field left the hash as it was: %+v", c)
		}
		seen[c.Hash()] = true
	}
}

// TestEnginesShareCachedBlocksWithinANamespace, if model, adapters and chat template are equal. An engine that an earlier
// agent started has no namespace, and keeps its blocks.
func TestEnginesShareCachedBlocksWithinANamespace(t *testing.T) {
	of := func(namespace, model, template string, adapters ...string) Config {
		c := Config{Namespace: namespace, ModelDigest: model, ChatTemplate: template}
		for _, a := range adapters {
			c.Adapters = append(c.Adapters, Adapter{Digest: a})
		}
		return c
	}
	seen := map[string]Config{}
	for _, c := range []Config{
		of("", "m", ""), of("", "m", "", "x"), of("team", "m", ""), of("other", "m", ""), of("team", "n", ""), of("team", "m", "t"), of("team", "m", "u"),
		of("team", "m", "", "x"), of("team", "m", "", "x", "y"), of("team", "m", "t", "x"), of("team", "m", "x"), of("team", "m", `t" "x`),
	} {
		if same, ok := seen[c.CacheModel()]; ok {
			t.Errorf("engines of %+v and %+v share blocks", same, c)
		}
		seen[c.CacheModel()] = c
	}
	one, two := of("team", "m", "t", "x", "y"), of("team", "m", "t", "y", "x")
	two.ReplicaUID, two.ContextTokens, two.Adapters[0].Path = "u", 9, "p"
	if one.CacheModel() != two.CacheModel() {
		t.Errorf("equal engines of a namespace have blocks of %q and %q", one.CacheModel(), two.CacheModel())
	}
	if got := of("", "m", "t").CacheModel(); got != "m" {
		t.Errorf("an engine of an earlier agent has blocks of %q, want m", got)
	}
}
