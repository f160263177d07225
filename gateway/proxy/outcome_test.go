package proxy

import (
	"errors"
	"fmt"
	"testing"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/dispatch"
)

func TestOutcomesOfRequests(t *testing.T) {
	lost := &openai.Error{Status: 503, Code: agentapi.CodeEngineLost}
	refused := func(e *openai.Error) *dispatch.Failure {
		return &dispatch.Failure{Reason: dispatch.ReasonRefused, Err: e, Refusal: e}
	}
	for name, tc := range map[string]struct {
		status int
		failed *dispatch.Failure
		err    error
		want   dispatch.Outcome
	}{
		"an answer":                             {status: 200, want: dispatch.OutcomeAnswered},
		"a request that is wrong":               {status: 400, want: dispatch.OutcomeRejected},
		"an error that is not retried":          {status: 503, want: dispatch.OutcomeRejected},
		"a failure of the engine":               {status: 500, want: dispatch.OutcomeFailed},
		"a refusal":                             {failed: refused(openai.Overloaded(0)), want: dispatch.OutcomeRefused},
		"an engine that ended":                  {failed: refused(lost), want: dispatch.OutcomeFailed},
		"a lost connection":                     {failed: &dispatch.Failure{Reason: dispatch.ReasonConnection}, want: dispatch.OutcomeFailed},
		"no memory here":                        {failed: &dispatch.Failure{Reason: dispatch.ReasonStream, Err: errNoRoom}, want: dispatch.OutcomeUnknown},
		"a stream whose engine ended":           {status: 200, err: fmt.Errorf("x: %w", lost), want: dispatch.OutcomeFailed},
		"a stream that its client delayed":      {status: 200, err: fmt.Errorf("x: %w", &openai.Error{Code: agentapi.CodeEngineLost, Cause: errDelayed}), want: dispatch.OutcomeUnknown},
		"a beginning that its client delayed":   {failed: &dispatch.Failure{Reason: dispatch.ReasonStream, Err: errDelayed}, want: dispatch.OutcomeUnknown},
		"a stream that turned into an error":    {status: 200, err: &openai.Error{Status: 422}, want: dispatch.OutcomeRejected},
		"a client that left":                    {status: 200, err: front.Gone(errors.New("x")), want: dispatch.OutcomeUnknown},
		"a time limit of the client":            {err: &openai.Error{Status: 504, Code: openai.CodeTimeout}, want: dispatch.OutcomeUnknown},
		"an event that is too long":             {status: 200, err: tooLong(errTooLong), want: dispatch.OutcomeRejected},
		"a stream for which memory was lacking": {status: 200, err: openai.Overloaded(0), want: dispatch.OutcomeUnknown},
	} {
		if got := outcomeOf(tc.status, tc.failed, tc.err); got != tc.want {
			t.Errorf("%s: outcome %d, want %d", name, got, tc.want)
		}
	}
}
