package enginetest

import (
	"encoding/json"
	"os"
)

// Script is the behaviour of a fake engine. It is in the file that the
// configuration names as the model; a Twin gets it by SetScript.
type Script struct {
	// HoldBytes of memory once loaded, in ten steps over LoadMilliseconds.
	HoldBytes        int64 `json:"holdBytes,omitempty"`
	LoadMilliseconds int64 `json:"loadMilliseconds,omitempty"`
	// PooledBytes are held in addition, free inside the back end, until a Trim.
	PooledBytes int64 `json:"pooledBytes,omitempty"`
	// PrefixCacheBytes are remembered of prompts, until a Trim that asks for them.
	PrefixCacheBytes int64 `json:"prefixCacheBytes,omitempty"`
	// RequestBytes of keys and values that each running request holds; they
	// are pooled afterwards where PoolRequests says so.
	RequestBytes int64 `json:"requestBytes,omitempty"`
	PoolRequests bool  `json:"poolRequests,omitempty"`
	// LeakBytes more every LeakMilliseconds once ready, accounted for nowhere.
	LeakBytes        int64 `json:"leakBytes,omitempty"`
	LeakMilliseconds int64 `json:"leakMilliseconds,omitempty"`
	// HeadroomBytes are requested by each request before it continues after the
	// agent's answer.
	HeadroomBytes int64 `json:"headroomBytes,omitempty"`
	// Claims, unless 0, is every figure of each status once ready; its texts have
	// ClaimedText bytes.
	Claims int64 `json:"claims,omitempty"`
	// Flood is how many statuses follow each one once ready, without a pause; each
	// counts one prompt token more.
	Flood int `json:"flood,omitempty"`
	// FailReason makes the load fail with it; FailMessage says more.
	FailReason  string `json:"failReason,omitempty"`
	FailMessage string `json:"failMessage,omitempty"`
	// DieLoading exits with that code while it loads.
	DieLoading int `json:"dieLoading,omitempty"`
	// ReapMilliseconds pass in a Twin between the end of the connections of a
	// process that exits by itself and the moment its exit status is known.
	ReapMilliseconds int64 `json:"reapMilliseconds,omitempty"`
	// HangLoading gets no further than half of the load.
	HangLoading bool `json:"hangLoading,omitempty"`
	// HangStep has the status claim that the iteration in which the first request begins
	// never ends.
	HangStep bool `json:"hangStep,omitempty"`
	// Deaf answers no call at all.
	Deaf bool `json:"deaf,omitempty"`
	// AnotherHash makes Hello claim another configuration.
	AnotherHash bool `json:"anotherHash,omitempty"`
	// IgnoreShutdown and IgnoreTerm leave the last rung of the ladder.
	IgnoreShutdown bool `json:"ignoreShutdown,omitempty"`
	IgnoreTerm     bool `json:"ignoreTerm,omitempty"`
	// IgnoreTrim, IgnoreAbort and IgnoreLimits never answer those calls.
	IgnoreTrim   bool `json:"ignoreTrim,omitempty"`
	IgnoreAbort  bool `json:"ignoreAbort,omitempty"`
	IgnoreLimits bool `json:"ignoreLimits,omitempty"`
	// AcknowledgeMilliseconds pass before Trim, Abort and SetLimits answer; what
	// they ask for is done at once.
	AcknowledgeMilliseconds int64 `json:"acknowledgeMilliseconds,omitempty"`
	// TokenMilliseconds between two words.
	TokenMilliseconds int64 `json:"tokenMilliseconds,omitempty"`
	// Task is the model's task (model.Task); empty: text generation. The task of
	// the configuration takes precedence. Lists of texts take ListMilliseconds.
	Task             string `json:"task,omitempty"`
	ListMilliseconds int64  `json:"listMilliseconds,omitempty"`
	// ShutdownMilliseconds between the end of the last request and the exit.
	ShutdownMilliseconds int64 `json:"shutdownMilliseconds,omitempty"`
}

// ClaimedText is the length in bytes of each text of an engine with Script.Claims.
const ClaimedText = 2000

// WriteScript writes a script for use as a model path.
func WriteScript(path string, s Script) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}
