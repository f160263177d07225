package proxy

import (
	"context"
	"errors"
	"net/http"
	"testing"
)

// A defect that one response meets does not end the responses of others.
func TestAPanicOfABackgroundResponseEndsItAlone(t *testing.T) {
	for _, c := range []struct {
		cause any
		want  error
	}{{"a defect", errPanicked}, {errors.New("a defect"), errPanicked}, {http.ErrAbortHandler, errIncomplete}} {
		err := runDetached(t.Context(), nil, func(context.Context, *reply) error { panic(c.cause) })
		if !errors.Is(err, c.want) {
			t.Errorf("a panic with %v becomes %v, want %v", c.cause, err, c.want)
		}
	}
}
