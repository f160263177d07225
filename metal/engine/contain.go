package engine

import (
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
)

// panicked is the error of a request over whose own work there was a panic.
type panicked struct{ work string }

func (p panicked) Error() string {
	return "the engine failed while it worked on the " + p.work + " of this request; its log has the cause"
}

// contained does work on what one request has for itself: its input, its constraint, a
// token of its answer. A panic there becomes the error of this request, and is logged with
// its stack. Work on what requests share is never contained, nor is the back end: what a
// panic leaves there is unknown, so the process ends and the agent starts it again.
func contained(log *slog.Logger, work string, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			logPanic(log, work, p, debug.Stack())
			err = panicked{work}
		}
	}()
	return do()
}

// logPanic logs the value of a panic only if it is the runtime's: others may hold a prompt.
func logPanic(log *slog.Logger, work string, value any, stack []byte) {
	cause := fmt.Sprintf("%T", value)
	if e, ok := value.(runtime.Error); ok {
		cause = e.Error()
	}
	log.Error("a request failed in a panic", "work", work, "cause", cause, "stack", string(stack))
}

// internal is the refusal of a request that failed through no fault of its own.
func internal(err error) *Refusal { return &Refusal{Kind: Internal, Message: err.Error()} }

// Contained does work on one request outside the engine, such as the translation of its
// messages. A panic there becomes a *Refusal of kind Internal, and is logged; other errors
// are returned as they are.
func (e *Engine) Contained(work string, do func() error) error {
	err := contained(e.log, work, do)
	if p, ok := err.(panicked); ok {
		return internal(p)
	}
	return err
}
