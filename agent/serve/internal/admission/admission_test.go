package admission_test

import (
	"errors"
	"io"
	"net/http/httptest"
	"testing"

	"metalfleet.dev/metalfleet/agent/serve/internal/admission"
	"metalfleet.dev/metalfleet/metal/wire"
)

type list []*wire.GenerateEvent

func (l *list) Recv() (*wire.GenerateEvent, error) {
	if len(*l) == 0 {
		return nil, io.EOF
	}
	e := (*l)[0]
	*l = (*l)[1:]
	return e, nil
}

var (
	admitted = &wire.GenerateEvent{Event: &wire.GenerateEvent_Admitted{Admitted: &wire.Admitted{}}}
	text     = &wire.GenerateEvent{Event: &wire.GenerateEvent_Delta{Delta: &wire.Delta{Text: "a"}}}
	finished = &wire.GenerateEvent{Event: &wire.GenerateEvent_Finished{Finished: &wire.Finished{}}}
)

func TestNothingIsReadBeforeAdmission(t *testing.T) {
	for name, l := range map[string]list{"text first": {text, admitted}, "end first": {finished}, "nothing": nil} {
		t.Run(name, func(t *testing.T) {
			if a, err := admission.Await(&l); a != nil || !errors.Is(err, admission.ErrOrder) {
				t.Errorf("Await = %v, %v", a, err)
			}
		})
	}
}

func TestOrderAfterAdmission(t *testing.T) {
	for name, tc := range map[string]struct {
		events list
		texts  int
		whole  bool
	}{
		"whole answer":     {events: list{admitted, text, text, finished}, texts: 2, whole: true},
		"no end":           {events: list{admitted, text}, texts: 1, whole: false},
		"admitted twice":   {events: list{admitted, admitted}, texts: 0, whole: false},
		"an empty message": {events: list{admitted, {}}, texts: 0, whole: false},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := admission.Await(&tc.events)
			if err != nil {
				t.Fatal(err)
			}
			texts := 0
			for {
				_, end, err := a.Next()
				if end != nil {
					if _, _, err := a.Next(); !tc.whole || !errors.Is(err, admission.ErrOrder) {
						t.Errorf("whole %v, after the end %v", tc.whole, err)
					}
					break
				}
				if err != nil {
					if tc.whole || !errors.Is(err, admission.ErrOrder) {
						t.Error(err)
					}
					break
				}
				texts++
			}
			if texts != tc.texts {
				t.Errorf("%d texts, want %d", texts, tc.texts)
			}
		})
	}
}

// A handler without an Admitted from Await cannot write to the client.
func TestOnlyAnAdmittedRequestOpensTheResponse(t *testing.T) {
	w := httptest.NewRecorder()
	door := admission.NewDoor(w)
	a, err := admission.Await(&list{admitted, finished})
	if err != nil {
		t.Fatal(err)
	}
	if got := door.Open(a); got != w {
		t.Errorf("the door leads to %v", got)
	}
	for name, a := range map[string]*admission.Admitted{"none": nil, "made by hand": {}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: the response was opened", name)
				}
			}()
			door.Open(a)
		}()
	}
}
