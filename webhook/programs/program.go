package programs

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"

	"jpintel/store"
	"jpintel/webhook"
)

const (
	// maxSource is the most bytes that a program's source may have.
	maxSource = 64 << 10
	// maxNames bounds the bytes of its fields' names together: an event lists
	// those that differ, in the worst case all of the old and all of the new
	// ones, and its data has to stay below 64 KiB.
	maxNames = 8 << 10
)

// program is a program's state: as it is stored, or as it is to be.
type program struct {
	seq      int64 // 0: not stored
	id       string
	source   object // without nulls
	text     []byte // source in canonical form
	checksum string // of text
	derived  bool   // authority_level follows from prefectures
}

// Result is what became of a record.
type Result string

// The results.
const (
	Created   Result = "created"   // program.created
	Updated   Result = "updated"   // program.updated
	Unchanged Result = "unchanged" // no event
)

// PutProgramRequest gives the whole of one program.
type PutProgramRequest struct {
	UnifiedID string          `path:"unified_id" json:"-"`
	Body      json.RawMessage `body:"raw" json:"-"` // an object of source fields
}

// PutProgramResponse says what became of it.
type PutProgramResponse struct {
	UnifiedID string  `json:"unified_id"`
	Result    Result  `json:"result"`
	Checksum  string  `json:"checksum"` // of the source fields as they are stored now
	EventID   *string `json:"event_id"` // null where nothing changed
}

// HTTPStatus is 201 for a new program, else 200.
func (r PutProgramResponse) HTTPStatus() int { return createdStatus(r.Result == Created) }

// PutProgram stores a program: its fields replace all that were stored, and
// one that the body does not have is removed. The error has CodeInvalid and
// names the field where the body is not a program, CodeTooLarge where it is
// one of more than 64 KiB.
func (s *Service) PutProgram(ctx context.Context, r PutProgramRequest) (PutProgramResponse, error) {
	answer := PutProgramResponse{UnifiedID: r.UnifiedID}
	rec, err := putRecord(r)
	if err != nil {
		return answer, err
	}
	err = s.DB.Write(ctx, func(tx *store.Tx) error {
		out, err := s.apply(ctx, tx, rec)
		if err == nil {
			err = out.refused
		}
		answer.Result, answer.Checksum = out.result, out.checksum
		if out.eventID != "" {
			answer.EventID = &out.eventID
		}
		return err
	})
	return answer, err
}

func putRecord(r PutProgramRequest) (record, error) {
	members, err := readObject(r.Body)
	if err != nil {
		return record{}, err
	}
	path := encode(r.UnifiedID)
	if id, ok := members[fieldID]; ok && !bytes.Equal(id, path) {
		return record{}, store.Errorf(store.CodeInvalid, "unified_id: want the one of the path, or none")
	}
	members[fieldID] = path
	rec, err := newRecord(members)
	rec.replace = true
	return rec, err
}

// outcome is what apply did with a record.
type outcome struct {
	result   Result
	checksum string
	eventID  string // "": no event
	refused  error  // why the record cannot be stored; nothing was done
}

// apply stores a record and publishes what it changed. An error is the
// store's: the transaction is to be given up.
func (s *Service) apply(ctx context.Context, tx *store.Tx, r record) (outcome, error) {
	stored, err := readProgram(tx, r.id)
	if err != nil {
		return outcome{}, err
	}
	next := stored.with(r)
	if err := next.check(); err != nil {
		return outcome{refused: err}, nil
	}
	out := outcome{checksum: next.checksum}
	switch {
	case stored.seq == 0:
		out.result = Created
		out.eventID, err = s.create(ctx, tx, next)
	case stored.checksum != next.checksum:
		out.result = Updated
		out.eventID, err = s.update(ctx, tx, stored, next)
	default:
		out.result = Unchanged
		err = next.keepDerived(tx, stored)
	}
	return out, err
}

// with returns the program that a record makes of p. The record's null clears
// a field, and so does a record that replaces by not having it.
func (p program) with(r record) program {
	next := program{seq: p.seq, id: r.id, source: make(object, len(p.source)+len(r.fields)), derived: p.derived}
	if !r.replace {
		maps.Copy(next.source, p.source)
	}
	for name, value := range r.fields {
		if name == fieldWindow {
			value = mergeWindow(p.source[name], value, r.replace)
		}
		if isNull(value) {
			delete(next.source, name)
		} else {
			next.source[name] = settle(p.source[name], value)
		}
	}
	if level, given := r.fields[fieldLevel]; given || r.replace || p.seq == 0 {
		next.derived = !given || isNull(level)
	}
	if next.derived {
		next.deriveLevel()
	}
	next.text = next.source.encode()
	next.checksum = checksum(next.text)
	return next
}

// deriveLevel keeps the level a source field, though its source does not tell
// it: so a change of it is told like any other.
func (p program) deriveLevel() {
	if level := levelOf(p.source.texts(fieldPrefectures)); level != "" {
		p.source[fieldLevel] = encode(level)
	} else {
		delete(p.source, fieldLevel)
	}
}

// mergeWindow does with the members of an application window what is done with
// fields: an import leaves those alone that it does not have.
func mergeWindow(stored, incoming json.RawMessage, replace bool) json.RawMessage {
	if isNull(incoming) {
		return incoming
	}
	var before object
	if stored != nil {
		before, _ = parseObject(stored) // it was checked
	}
	after, err := parseObject(incoming)
	if err != nil {
		return null // unreachable: it was checked
	}
	merged := object{}
	if !replace {
		maps.Copy(merged, before)
	}
	for name, value := range after {
		if isNull(value) {
			delete(merged, name)
		} else {
			merged[name] = settle(before[name], value)
		}
	}
	if len(merged) == 0 {
		return null
	}
	return merged.encode()
}

// check looks at what can only be judged once stored and new fields are together.
func (p program) check() error {
	if p.source[fieldName] == nil {
		return store.Errorf(store.CodeInvalid, "primary_name: required")
	}
	return p.source.checkSize()
}

// checkSize checks that source fields are not more than a program may have.
func (o object) checkSize() error {
	all, names := len("{}"), 0
	for name, value := range o {
		all += len(name) + len(`"":,`) + len(value)
		names += len(name)
	}
	switch {
	case all > maxSource:
		return store.Errorf(store.CodeTooLarge, "the program has %d bytes, at most %d", all, maxSource)
	case names > maxNames:
		return store.Errorf(store.CodeTooLarge, "the names of the program's fields have %d bytes, at most %d", names, maxNames)
	}
	return nil
}

// attributes are what filters look at.
func (p program) attributes() webhook.Attributes {
	a := webhook.Attributes{"unified_id": {p.id}}
	if area := p.source.texts(fieldPrefectures); len(area) > 0 {
		a["prefecture"] = area
	}
	if level := p.source.text(fieldLevel); level != "" {
		a["authority_level"] = []string{level}
	}
	if targets := p.source.texts(fieldTargets); len(targets) > 0 {
		a["target_type"] = targets
	}
	return a
}

// created is the data of program.created: these fields and no others, whatever
// a source has.
func (p program) created() webhook.ProgramCreated {
	data := webhook.ProgramCreated{
		Attributes: p.attributes(), UnifiedID: p.id,
		PrimaryName: p.source.text(fieldName), SourceURL: p.source.text(fieldURL),
	}
	if level := p.source.text(fieldLevel); level != "" {
		data.AuthorityLevel = &level
	}
	if one := onePrefecture(p.source.texts(fieldPrefectures)); one != "" {
		data.Prefecture = &one
	}
	if amount, err := strconv.ParseInt(string(p.source[fieldAmount]), 10, 64); err == nil { // absent: null
		data.AmountMaxManYen = &amount
	}
	return data
}

func readProgram(q store.Querier, id string) (program, error) {
	p := program{id: id}
	err := q.QueryRow(`
		SELECT program_seq, source, checksum, level_derived
		FROM programs
		WHERE unified_id = $1`, id).Scan(&p.seq, &p.text, &p.checksum, &p.derived)
	if errors.Is(err, sql.ErrNoRows) {
		return p, nil
	}
	if err == nil {
		p.source, err = parseObject(p.text)
	}
	if err != nil {
		return p, fmt.Errorf("reading program %s: %w", id, err)
	}
	return p, nil
}

func (s *Service) create(ctx context.Context, tx *store.Tx, p program) (eventID string, err error) {
	if _, err := tx.Exec(`
		INSERT INTO programs (unified_id, source, checksum, level_derived, created_at_ms, updated_at_ms)
		VALUES ($1, $2, $3, $4, $5, $5)`,
		p.id, string(p.text), p.checksum, p.derived, tx.NowMS()); err != nil {
		return "", fmt.Errorf("storing program %s: %w", p.id, err)
	}
	if eventID, err = s.Outbox.Publish(ctx, tx, p.created()); err != nil {
		return "", err
	}
	return eventID, s.addMatchJob(tx, eventID)
}

func (s *Service) update(ctx context.Context, tx *store.Tx, stored, next program) (eventID string, err error) {
	n, err := tx.Update(`
		UPDATE programs
		SET source = $1,
		    checksum = $2,
		    level_derived = $3,
		    updated_at_ms = $4
		WHERE program_seq = $5 AND checksum = $6`,
		string(next.text), next.checksum, next.derived, tx.NowMS(), stored.seq, stored.checksum)
	if err != nil {
		return "", fmt.Errorf("storing program %s: %w", next.id, err)
	}
	if n != 1 {
		return "", fmt.Errorf("storing program %s: it changed meanwhile", next.id) // unreachable: the row was read in this transaction
	}
	return s.Outbox.Publish(ctx, tx, webhook.ProgramUpdated{
		Attributes: next.attributes(), UnifiedID: next.id,
		ChangedFields:    changedNames(stored.source, next.source),
		PreviousChecksum: stored.checksum, CurrentChecksum: next.checksum,
	})
}

// keepDerived remembers that a source has begun, or ceased, to tell the level
// itself where the level stays the same. That is not a change of the program.
func (p program) keepDerived(tx *store.Tx, stored program) error {
	if p.derived == stored.derived {
		return nil
	}
	if _, err := tx.Exec(`UPDATE programs SET level_derived = $1 WHERE program_seq = $2`, p.derived, p.seq); err != nil {
		return fmt.Errorf("storing program %s: %w", p.id, err)
	}
	return nil
}
