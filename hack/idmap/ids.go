package main

// The words for a row that tests do not answer, or not alone.
const (
	construction = "by construction"
	superseded   = "superseded"
	deferred     = "deferred"
	// partly goes with tests: they show the part that is built.
	partly = "the rest deferred"
)

// row is one required behaviour, in a few words.
type row struct{ id, what string }

// pages are the maps, each with its list.
var pages = []page{
	{"docs/memory.md", memoryRows, memoryWords},
	{"docs/cache.md", cacheRows, cacheWords},
	{"docs/admin.md", adminRows, adminWords},
}

// adminRows are the behaviours of what a person asks of one Mac.
var adminRows = []row{
	{"A14", "status: what is loaded, its bytes, what runs and waits, the pressure, each model's activity"},
	{"A15", "clearing caches, in memory and on the disk: each engine's, then what nobody owns"},
	{"A16", "settings are read back as they were written; what is absent is the default, what is unknown is refused"},
	{"A17", "settings of one model"},
	{"A18", "hardware: chip, memory, the framework's counters, what it can do"},
}

// adminWords are the answers that are not tests.
var adminWords = map[string]word{
	"A17": {superseded, "a model's settings are its ModelDeployment, whose schema refuses what is unknown; there are no profiles that could change them behind its back"},
	"A18": {partly, "chip, memory and each engine's counters; what the framework's build can do is named by the back end alone"},
}

// memoryRows are the behaviours of memory: pool, gauges and enforcer, prefill
// guard, two of the caches, and the invariants.
var memoryRows = []row{
	{"P1", "one entry and at most one live engine per replica; concurrent requests cause one load"},
	{"P2", "an entry holds all that is known of it, loaded or not"},
	{"P3", "every kind of engine has the same life"},
	{"P4", "a hold is taken under the lock, whether the engine was loaded or has just been"},
	{"P5", "a hold names the exact replica; a refused request leaves none"},
	{"P6", "a hold lasts to the last byte of the answer"},
	{"P7", "the active count is begun less ended"},
	{"P8", "after a stop nothing counts as active"},
	{"P9", "the victim: loaded, not pinned, not held, not busy, not loading; oldest use first"},
	{"P10", "an idle model goes after its time, never a held one"},
	{"P11", "a pinned model is never a victim"},
	{"P12", "admission before a load: room is made, or the refusal names ceiling, use and need"},
	{"P13", "admission counts what is accounted, whatever live gauges say"},
	{"P14", "one way to unload for every reason"},
	{"P15", "the order of an unload"},
	{"P16", "streams end before the engine goes, within a bound, never silently"},
	{"P17", "the host is looked at until it has its bytes back"},
	{"P18", "an unload that frees nothing is noticed"},
	{"P19", "others at work end the look at once"},
	{"P20", "freed bytes are measured, or unknown; never negative"},
	{"P21", "a stop releases caches whatever fails"},
	{"P22", "an unknown name may mean a default model, on record"},
	{"P23", "one thread owns each engine's framework"},
	{"P24", "unloads that could not be measured are counted"},
	{"P25", "a load can be told to end; nothing of it stays"},
	{"P26", "bytes left by failed or foreign work are found and reported"},
	{"M1", "the gauge is the largest of three, each published"},
	{"M2", "the enforcer polls, recomputes, publishes, acts, and survives its own errors"},
	{"M3", "soft and hard marks with hysteresis; actions aim below soft"},
	{"M4", "soft: new prompts wait, idle models go, running work goes on"},
	{"M5", "hard: streams that are ended get a terminal event, loads are cancelled"},
	{"M6", "limits reach every engine at every poll"},
	{"M7", "the guard is found behind wrappers, or says that it is not"},
	{"M8", "a reader sees limits of one publication"},
	{"M9", "load, unload and requests wake the loop"},
	{"M10", "loops work on a copy of the entries"},
	{"M11", "an administrator's ceiling is a hard promise"},
	{"M12", "a pause between victims"},
	{"M13", "memory that nobody owns counts and is shown"},
	{"G1", "peak of a prefill"},
	{"G2", "fused or full attention scores, by head size and length"},
	{"G3", "dimensions from nested configurations"},
	{"G4", "keys and values grow for new tokens and growing layers alone"},
	{"G5", "the check comes before the first byte of an answer"},
	{"G6", "a refusal names used, needed and limit"},
	{"G7", "checked again when it is computed; a refusal leaves nothing"},
	{"G8", "images count"},
	{"G9", "tools count as they are written"},
	{"G10", "a tokenizer's fault is its own error"},
	{"G11", "chunks shrink near the limit"},
	{"G12", "over the limit in the middle of a prompt ends that one request"},
	{"G13", "headroom is asked for once before a refusal"},
	{"G14", "whether anything can be evicted is known before asking"},
	{"G15", "the answer's growth is reserved"},
	{"K16", "clearing says how many bytes came back"},
	{"K18", "no engine and memory still held is a condition"},
	{"Invariant1", "a held engine is never stopped by the pool's own choice"},
	{"Invariant2", "holds equal unreleased handles"},
	{"Invariant3", "accounted bytes are the sum over residents, never negative"},
	{"Invariant4", "every wait is bounded and holds no lock that others need"},
	{"Invariant5", "freed bytes are never negative nor another engine's"},
	{"Invariant6", "after the last unload the Mac is empty, or a condition says why"},
	{"Invariant7", "every request ends exactly once"},
	{"Invariant8", "a refused request leaves nothing"},
	{"Invariant9", "guard state is of one publication; a guard that cannot act is seen"},
	{"Invariant10", "the estimated peak never falls when a size grows"},
}

// memoryWords are the answers that are not tests.
var memoryWords = map[string]word{
	"P18": {superseded, "one process per engine: its observed exit returns its pool, so there is nothing to clear again; what stays is judged as stranded (agent/memory)"},
	"P21": {partly, "today arrays, pools and the process; the cache manager comes with caches that survive"},
	"P22": {superseded, "a bare name belongs to the oldest deployment that claims it, and anything else is a 404 with the names that exist"},
	"M7":  {construction, "an engine is one process with one guard of its own type: nothing wraps it"},
	"G8":  {deferred, "no model reads images yet"},
	"G5":  {partly, "chat and completions; messages and responses come with their routes"},
}

// cacheRows are the behaviours of batching and of the caches of keys and values.
var cacheRows = []row{
	{"A28", "many requests in a step, each with its own sampler, seed and penalties; admission is fair"},
	{"A29", "the queue is bounded; what does not fit is refused and told when to come again"},
	{"K1", "blocks of fixed size under keys chained over all before them; written whole or not at all"},
	{"K2", "an index in memory with order of use and a total that is always the sum"},
	{"K3", "the limit follows the free space of the disk"},
	{"K4", "eviction unlinks at once, by who saves, not behind a queue"},
	{"K5", "at most 32 files go with one save; the rest drains later"},
	{"K6", "a save waits a bounded time for room, then it is dropped and counted"},
	{"K7", "what a file will take is known before it is written"},
	{"K8", "a full disk forgets the block and what was thought free, and says so"},
	{"K9", "queued and persisted are counted apart"},
	{"K10", "each lost block is counted, by where it was lost"},
	{"K11", "what is queued can be read before it is on disk"},
	{"K12", "a tier in memory before the disk; what leaves it is written once"},
	{"K13", "one budget for all caches of a Mac"},
	{"K14", "what nobody owns any more is found and freed"},
	{"K15", "clearing forgets first, then frees, on the thread that owns the framework"},
	{"K16", "clearing says how many bytes came back"},
	{"K17", "one way to clear a framework's pool, and a lint that forbids others"},
	{"B1", "what cannot be cut is saved whole at boundaries, in prompts and in answers"},
	{"B2", "a snapshot belongs to a request, never to a row of a batch"},
	{"B3", "a request's snapshots end with it, unless they were kept under a key"},
	{"B4", "cleaning up is final, whatever a writer was doing"},
	{"B5", "a cancelled request leaves no debt to one that comes later"},
	{"B6", "requests are cleaned up before their store closes"},
	{"X1", "the longest chain of known blocks is found; only the rest is computed"},
	{"X2", "a point that a layer cannot be restored at is no hit"},
	{"X3", "what is cached counts in the length that a prompt attends"},
	{"X4", "every kind of layer says whether its cache can be cut; unknown kinds are refused"},
	{"X5", "a reset drops batches, snapshots and caches in order"},
	{"Invariant7", "every request ends exactly once"},
	{"Invariant8", "a refused request leaves nothing"},
	{"Invariant11", "bytes on disk stay within the limit and the declared backlog"},
	{"Invariant12", "persisted, queued, dropped and failed are all that was accepted"},
	{"Invariant13", "what is restored continues as what is computed"},
	{"Invariant14", "nothing of what was cleaned up appears again"},
	{"Invariant15", "a cancelled identity never affects the next use of it"},
}

// cacheWords are the answers that are not tests.
var cacheWords = map[string]word{}
