package report

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/excerpt"
)

const (
	// MaxTextBytes bounds the messages of a Mac's conditions and assignments, as JSON. The
	// policy metalfleet-agent-size admits them with those of the inspections, which have
	// a budget of their own, and the sources of removed weights.
	MaxTextBytes = 128 << 10
	// leastMessage is the least length that messages are cut to, in bytes.
	leastMessage = 64
)

// within returns a status whose messages take at most most bytes as JSON: all are cut to the
// same length where they take more.
func within(s *v1alpha1.MacNodeStatus, most int) *v1alpha1.MacNodeStatus {
	whole := s
	for each := excerpt.MessageBytes; each >= leastMessage && textBytes(s) > most; each /= 2 {
		s = whole.DeepCopy()
		texts(s, func(message *string) { *message = excerpt.Of(*message, each) })
	}
	return s
}

func textBytes(s *v1alpha1.MacNodeStatus) (n int) {
	texts(s, func(message *string) {
		b, _ := json.Marshal(*message) // a text can be encoded
		n += len(b)
	})
	return n
}

// texts visits the messages of a Mac and its assignments.
func texts(s *v1alpha1.MacNodeStatus, visit func(message *string)) {
	all := func(conditions []metav1.Condition) {
		for i := range conditions {
			visit(&conditions[i].Message)
		}
	}
	all(s.Conditions)
	for i := range s.Assignments {
		all(s.Assignments[i].Conditions)
		if f := s.Assignments[i].LastFailure; f != nil {
			visit(&f.Message)
		}
	}
}
