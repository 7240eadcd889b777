package modelgatetest

import (
	"fmt"
	"net/http"
)

// problem is an error as the contract's envelope shows it.
type problem struct {
	status            int
	code, message     string
	kind              string // validation, conflict, auth, rate_limit, balance or server
	param             string // the member, parameter or header that is meant
	existingID        string // of external_ref_conflict
	originalRequestID string // of a reused key
	retryable         bool
	retryAfter        string // the header; "": none
	document          bool   // a problem document (RFC 9457) around the envelope
}

// Error implements error.
func (p *problem) Error() string { return fmt.Sprintf("%d %s: %s", p.status, p.code, p.message) }

// problemf makes an error whose kind is its status's.
func problemf(status int, code, format string, args ...any) *problem {
	return &problem{
		status: status, code: code, message: fmt.Sprintf(format, args...), kind: kindOf(status),
		retryable: status == http.StatusTooManyRequests || status >= 500,
	}
}

// invalidf is a request that means nothing: 400, never stored.
func invalidf(param, format string, args ...any) *problem {
	p := problemf(http.StatusBadRequest, "validation_failed", format, args...)
	p.param = param
	return p
}

// kindOf is the type of an error in the envelope. The contract has no word for
// what is not found.
func kindOf(status int) string {
	switch {
	case status >= 500:
		return "server"
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return "auth"
	case status == http.StatusPaymentRequired:
		return "balance"
	case status == http.StatusConflict, status == http.StatusPreconditionFailed:
		return "conflict"
	case status == http.StatusTooManyRequests:
		return "rate_limit"
	}
	return "validation"
}

// envelope is the body of an error.
type envelope struct {
	Type   string      `json:"type,omitempty"` // these four in a problem document only
	Title  string      `json:"title,omitempty"`
	Status int         `json:"status,omitempty"`
	Detail string      `json:"detail,omitempty"`
	Error  errorMember `json:"error"`
}

type errorMember struct {
	Code              string  `json:"code"`
	Message           string  `json:"message"`
	Type              string  `json:"type"`
	Param             *string `json:"param"`
	RequestID         string  `json:"request_id"`
	Retryable         bool    `json:"retryable"`
	ExistingID        string  `json:"existing_id,omitempty"`
	OriginalRequestID string  `json:"original_request_id,omitempty"`
}

// reply is the problem as an answer.
func (p *problem) reply(requestID string) reply {
	e := envelope{Error: errorMember{
		Code: p.code, Message: p.message, Type: p.kind, RequestID: requestID, Retryable: p.retryable,
		ExistingID: p.existingID, OriginalRequestID: p.originalRequestID,
	}}
	if p.param != "" {
		e.Error.Param = &p.param
	}
	contentType := "application/json"
	if p.document {
		e.Type, e.Title, e.Status, e.Detail = "urn:modelgate:error:"+p.code, http.StatusText(p.status), p.status, p.message
		contentType = "application/problem+json"
	}
	r := jsonReply(p.status, e)
	r.header.Set("Content-Type", contentType)
	if p.retryAfter != "" {
		r.header.Set("Retry-After", p.retryAfter)
	}
	return r
}
