package load

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
)

func TestFiguresLeaveOutWhatFailed(t *testing.T) {
	var samples []Sample
	for i := range 100 {
		first := time.Duration(i+1) * time.Millisecond
		samples = append(samples, Sample{First: first, Total: first + time.Second, Tokens: i + 2})
	}
	samples = append(samples, Sample{Error: "429 rate_limit_exceeded", First: time.Hour}, Sample{Error: "429 rate_limit_exceeded"})
	r := Summarize("m", 4, samples, 10*time.Second)
	if r.Requests != 102 || r.Failed != 2 || r.Errors["429 rate_limit_exceeded"] != 2 || r.OutputTokens != 5150 || r.TokensPerSecond != 515 {
		t.Errorf("got %+v", r)
	}
	if *r.FirstToken.P50 != 50 || *r.FirstToken.P99 != 99 || *r.Decode.P50 != 50 || *r.Decode.P99 != 1 {
		t.Errorf("p50 %v and p99 %v of the first token, %v and %v of decoding", *r.FirstToken.P50, *r.FirstToken.P99, *r.Decode.P50, *r.Decode.P99)
	}
	if r = Summarize("m", 1, nil, 0); r.FirstToken.P50 != nil || r.TokensPerSecond != 0 {
		t.Errorf("figures of nothing: %+v", r)
	}
}

func TestSoManyAtOnceAndNoMore(t *testing.T) {
	var at, most atomic.Int64
	all := make(chan struct{})
	send := func(context.Context, int) Sample {
		if n := at.Add(1); n == 3 {
			close(all)
		}
		<-all // all three streams are under way
		most.Store(max(most.Load(), at.Load()))
		at.Add(-1)
		return Sample{Tokens: 1}
	}
	if got := Run(context.Background(), 3, 3, send); len(got) != 3 || most.Load() > 3 {
		t.Errorf("%d answers, %d at once", len(got), most.Load())
	}
	ctx, cancel := context.WithCancel(context.Background())
	sent := Run(ctx, 1000, 2, func(ctx context.Context, i int) Sample {
		if i == 3 {
			cancel()
		} else if i > 3 {
			<-ctx.Done() // the other stream may have taken one more by then
		}
		return Sample{}
	})
	if len(sent) < 4 || len(sent) > 5 {
		t.Errorf("%d requests were sent though the person stopped after the fourth", len(sent))
	}
}
