package pool

import (
	"metalfleet.dev/metalfleet/metal/excerpt"
	"metalfleet.dev/metalfleet/metal/wire"
)

// maxCount bounds what an engine counts, and its bytes while this Mac's memory is not
// known: sums of such figures do not overflow.
const maxCount = 1 << 50

// accepted is an engine's status as the agent takes it. A model that took its engine
// over can report anything, and what it reports is added up, kept and shown: texts are
// cut, bytes are between 0 and most, this Mac's memory (0: not known), and no count is
// negative.
func accepted(s *wire.Status, most int64) *wire.Status {
	if most <= 0 {
		most = maxCount
	}
	bytes := func(n int64) int64 { return within(n, most) }
	out := &wire.Status{
		State: s.GetState(), Task: s.GetTask(), Reason: excerpt.Of(s.GetReason(), maxReason), Message: excerpt.Message(s.GetMessage()),
	}
	if l := s.GetLoad(); l != nil {
		out.Load = &wire.LoadProgress{BytesDone: count(l.GetBytesDone()), BytesTotal: count(l.GetBytesTotal())}
	}
	if m := s.GetMemory(); m != nil {
		out.Memory = &wire.Memory{
			WeightsBytes: bytes(m.GetWeightsBytes()), KvInUseBytes: bytes(m.GetKvInUseBytes()), ActiveBytes: bytes(m.GetActiveBytes()),
			PooledBytes: bytes(m.GetPooledBytes()), PrefixCacheBytes: bytes(m.GetPrefixCacheBytes()),
		}
	}
	if a := s.GetActivity(); a != nil {
		out.Activity = &wire.Activity{
			Running: count(a.GetRunning()), Queued: count(a.GetQueued()), Steps: count(a.GetSteps()),
			PromptTokensTotal: count(a.GetPromptTokensTotal()), GeneratedTokensTotal: count(a.GetGeneratedTokensTotal()),
			IterationMilliseconds: count(a.GetIterationMilliseconds()),
		}
	}
	if g := s.GetGuard(); g != nil {
		out.Guard = &wire.Guard{
			Active: g.GetActive(), InactiveReason: excerpt.Message(g.GetInactiveReason()), LimitsSequence: g.GetLimitsSequence(),
			HeadroomRequest: g.GetHeadroomRequest(), HeadroomBytes: bytes(g.GetHeadroomBytes()), ThrottledChunks: count(g.GetThrottledChunks()),
			RefusedRequests: count(g.GetRefusedRequests()), AbortedPrefills: count(g.GetAbortedPrefills()),
		}
	}
	if p := s.GetPrefixCache(); p != nil {
		out.PrefixCache = &wire.PrefixCache{
			Bytes: bytes(p.GetBytes()), BudgetBytes: bytes(p.GetBudgetBytes()), Blocks: count(p.GetBlocks()), Hits: count(p.GetHits()),
			Misses: count(p.GetMisses()), RestoredTokens: count(p.GetRestoredTokens()), Saved: count(p.GetSaved()),
			Dropped: count(p.GetDropped()), Evicted: count(p.GetEvicted()), QueriedTokens: count(p.GetQueriedTokens()),
		}
	}
	return out
}

func count(n int64) int64 { return within(n, maxCount) }

func within(n, most int64) int64 { return min(max(0, n), most) }
