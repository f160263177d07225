package responses

import "metalfleet.dev/metalfleet/api/openai"

// errorEvent is how a stream of this API tells an error that is nobody's
// response: one that was lost on its way.
type errorEvent struct {
	Type    string  `json:"type"`
	Code    *string `json:"code"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
	// SequenceNumber of who does not count the events is 0.
	SequenceNumber int `json:"sequence_number"`
}

// ErrorEvent is the data of the event "error".
func ErrorEvent(e *openai.Error) ([]byte, error) {
	out := errorEvent{Type: "error", Message: e.Message}
	if e.Code != "" {
		out.Code = &e.Code
	}
	if e.Param != "" {
		out.Param = &e.Param
	}
	return openai.Marshal(out)
}
