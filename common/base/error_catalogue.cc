#include "common/base/error_catalogue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/nearest.h"

namespace sluice {
namespace {

constexpr CatalogueRow kRows[] = {
    // Who may call whom, certificates, and where files of jobs may lie.
    {"SLUICE-AUTH-0001", "A TLS folder lacks one of its three files.",
     "A process needs tls.crt, tls.key and ca.crt in the folder of --tls or SLUICE_TLS.",
     "Make the folder with `sluice pki issue`, or mount the Secret of that role there.", false},
    {"SLUICE-AUTH-0002", "Every user of the host may read a private key.",
     "The mode of tls.key has bits for others. Whoever reads the key can be that daemon or person.",
     "Run `chmod 600` on the key. Issue a new certificate if others had access to the host.",
     false},
    {"SLUICE-AUTH-0003", "A certificate carries no identity of Sluice.",
     "Its URI is not of the form spiffe://DOMAIN/sluice/ROLE/NAME, or it has none or several.",
     "Use a certificate of `sluice pki issue`, or give yours that URI. `sluice pki show DIR` "
     "prints "
     "the URI.",
     false},
    {"SLUICE-AUTH-0004", "A certificate belongs to another domain.",
     "Daemons and people trust only certificates of their own domain, which `sluice pki init "
     "--domain` names.",
     "Issue it with the authority of this fleet, or call the fleet that it belongs to.", false},
    {"SLUICE-AUTH-0005", "The role of the caller may not make this call.",
     "Each call is open to the roles that its proto file lists. A viewer, for example, may not "
     "cancel a job.",
     "Use a certificate of one of the roles that the message names, or ask an operator.", false},
    {"SLUICE-AUTH-0006", "A daemon speaks for another one.",
     "The id in the call is not the name in the certificate of the caller.",
     "Start the daemon with --id equal to the name in its certificate.", false},
    {"SLUICE-AUTH-0007", "An address is not on loopback, and there is no certificate.",
     "Without TLS, every process of the network could call the daemon.",
     "Give --tls DIR with a folder of `sluice pki issue`, or use 127.0.0.1.", false},
    {"SLUICE-AUTH-0008", "A daemon was started without --tls and without --insecure-loopback.",
     "Daemons prove who they are, unless it is turned off on purpose.",
     "Give --tls DIR. To try things out on one machine, use `sluice dev up`.", false},
    {"SLUICE-AUTH-0009", "The certificate is that of another daemon or role.",
     "--tls names the folder of another daemon, or --id is not the name in the certificate.",
     "Give --tls the folder of this daemon, or --id the name in its certificate.", false},
    {"SLUICE-AUTH-0010", "A file of a job lies outside of the folders that jobs may use.",
     "The operator starts daemons with --read-root and --write-root. A path of the job file, or a "
     "link on the way, leads elsewhere.",
     "Move the files below one of these folders, or ask the operator to add theirs.", false},
    {"SLUICE-AUTH-0011", "A daemon listens off loopback and has no folders for files of jobs.",
     "Without --read-root and --write-root, jobs could name every file of the host.",
     "Give --read-root DIR for models and data, and --write-root DIR for checkpoints.", false},
    {"SLUICE-AUTH-0012", "The job belongs to another submitter.",
     "A submitter sees and controls its own jobs only.",
     "Ask its owner or an operator. `sluice job list` shows your own jobs.", false},
    {"SLUICE-AUTH-0013", "A viewer asked for the text of prompts or answers.",
     "Viewers see counts and states, not texts.",
     "Leave out --show-text, or ask the owner of the job.", false},
    {"SLUICE-AUTH-0020", "A Redis that is not on loopback is named without TLS.",
     "The password and all data would go over the network in clear.",
     "Enable TLS in that Redis (tls-port), and write rediss:// in the URL.", false},
    {"SLUICE-AUTH-0021", "The certificate of a Redis is not accepted.",
     "Another authority has signed it, it has ended, or it names another host.",
     "Give the CA file of its authority, and name the host as the certificate does.", false},
    {"SLUICE-AUTH-0022", "The store is in a Redis off loopback, and no password is given.",
     "Whoever reaches that Redis could read and change all jobs.",
     "Set `requirepass` in that Redis, and give the password by file or environment variable.",
     false},

    // Job files and policy files. The messages name file, line and column.
    {"SLUICE-CONFIG-0001", "The file cannot be read, or is not YAML.",
     "There is no such file, this user may not read it, or its syntax is wrong.",
     "Correct the path, or the place that the message names.", false},
    {"SLUICE-CONFIG-0002", "The file uses YAML that job files may not use.",
     "Anchors, tags, several documents, very deep nesting and files above 1 MiB are refused.",
     "Write the value out in plain YAML.", false},
    {"SLUICE-CONFIG-0003", "A key is unknown.",
     "It is misspelt, or stands in another block. The message names the nearest key.",
     "Correct it. `sluice config defaults` prints all keys.", false},
    {"SLUICE-CONFIG-0004", "A key is there twice.",
     "The second one would replace the first silently.", "Remove one of them.", false},
    {"SLUICE-CONFIG-0005", "A value has the wrong type.",
     "For example a text where a number is wanted, or one value where a list is wanted.",
     "Write a value of the type that the message names.", false},
    {"SLUICE-CONFIG-0006", "A duration or size has no unit, or an unknown one.",
     "Durations and sizes are written with a unit, so that nobody has to guess it.",
     "Write it as in 30s, 5m, 512MiB or 8GiB.", false},
    {"SLUICE-CONFIG-0007", "A number is out of bounds.",
     "The message names the bound; `sluice config defaults` prints all of them.",
     "Choose a value within the bounds.", false},
    {"SLUICE-CONFIG-0008", "A word is not one of the choices.",
     "It is misspelt, or this build does not have it.", "Choose one of the words in the message.",
     false},
    {"SLUICE-CONFIG-0009", "A required value is missing.",
     "Some keys have no default, such as the model and the data.", "Add the key.", false},
    {"SLUICE-CONFIG-0010", "Two values contradict each other.",
     "Each value is allowed alone. The message names the rule that they break together.",
     "Change one of the values that the message names.", false},
    {"SLUICE-CONFIG-0011", "The quota is too small for the worst case.",
     "The queue must hold everything that may be under way until a checkpoint is written.",
     "Raise queue.keep.quota, or make groups, answers, max_staleness or the distance between "
     "checkpoints smaller.",
     false},
    {"SLUICE-CONFIG-0012", "A file or directory is not there.",
     "The path is misspelt, or the file is on another host.",
     "Correct the path. If only the daemons have the file, submit with --remote-files.", false},
    {"SLUICE-CONFIG-0013", "The value is known, but this build does not support it.",
     "The job file may ask for more than this build does.",
     "Choose another value; `sluice config defaults` marks what is not supported.", false},
    {"SLUICE-CONFIG-0014", "A --set cannot be used.",
     "It is not KEY=VALUE, or it names an element of a list that does not exist.",
     "Write it as in --set trainer.optimizer.lr=1e-3.", false},
    {"SLUICE-CONFIG-0015", "The model, its tokenizer or its chat template cannot be used.",
     "A file of the model directory is damaged, missing or not supported.",
     "Correct or download the directory again, or name another model.", false},
    {"SLUICE-CONFIG-0016", "The rows of a data file cannot be used by the job.",
     "A row is not JSON, lacks a column, is too long, or has no answer to score with.",
     "Correct the file, or the keys that name its columns.", false},
    {"SLUICE-CONFIG-0017", "A warning: the value works, but is probably a mistake.",
     "It is allowed, and unusual enough that most who write it did not mean it.",
     "Look at it once. The job runs as it is.", false},
    {"SLUICE-CONFIG-0018", "A value is above what the operator allows.",
     "The operator's policy file caps some keys for every job of the fleet.",
     "Lower the value to the cap in the message, or ask the operator.", false},

    // The controller and the lives of jobs.
    {"SLUICE-CTL-0001", "Daemon and controller have no protocol in common.",
     "Their builds are too far apart.", "Install the same version; upgrade the controller first.",
     false},
    {"SLUICE-CTL-0002", "The id of a daemon belongs to a daemon of another role.",
     "Two daemons were given the same --id.", "Give each daemon its own --id.", false},
    {"SLUICE-CTL-0003", "Another process with the same id still sends heartbeats.",
     "Two daemons run with one --id, or the old process has not ended yet.",
     "Wait some seconds. If it stays, stop the other process or change --id.", true},
    {"SLUICE-CTL-0004", "A name has characters that names may not have.",
     "Names of jobs and ids of daemons become parts of paths, labels and certificates.",
     "Use at most 63 of a-z, 0-9 and the marks in the message, and begin with a letter or digit.",
     false},
    {"SLUICE-CTL-0005", "A job with this name lives already and was made from another file.",
     "A name belongs to one job until that job has ended.",
     "Choose another name, or end the other job with `sluice job cancel NAME`.", false},
    {"SLUICE-CTL-0006", "There is no such job.",
     "The name is misspelt, or the job was submitted to another controller.",
     "See `sluice job list`, and whether --server names the right controller.", false},
    {"SLUICE-CTL-0007", "The controller refuses the spec of a job.",
     "It makes the checks of `sluice config validate` again, with its own files and build.",
     "Correct what the message lists. Paths are those of the controller's host.", false},
    {"SLUICE-CTL-0008", "The controller has no place for its jobs.",
     "It keeps them in its data directory or in a Redis, and neither was named.",
     "Start sluice-controller with --data-dir DIR, or with --store and the URL of a Redis.", false},
    {"SLUICE-CTL-0010", "A daemon reported that the job failed.",
     "The message ends with the cause that the daemon gave.",
     "Act on that cause; the log of that daemon says more. Then submit the job again.", false},
    {"SLUICE-CTL-0011", "The job recovers: its queue does not serve.",
     "The queue has died, is being restarted, or cannot be reached.",
     "Wait: the job goes on when the queue is back. Start it with the same id and data directory.",
     true},
    {"SLUICE-CTL-0012", "The job recovers: a trainer is missing.",
     "A trainer has died. The job waits for a new trainer group, which restores the last "
     "checkpoint.",
     "Wait, or start a trainer. `sluice why JOB` says what it waits for.", true},
    {"SLUICE-CTL-0013", "The job did not run in time after its start.",
     "A daemon was not ready within limits.start. The message names it.",
     "See the log of that daemon, or raise limits.start for large models.", false},
    {"SLUICE-CTL-0014", "No step has ended for limits.stall_fail, and the queue is away.",
     "The queue did not come back in time.",
     "Start the queue again on its data directory, and submit the job again.", false},
    {"SLUICE-CTL-0015", "No step has ended for limits.stall_fail.",
     "Something that the job waits for did not come. The message has the chain of waits.",
     "Remove the cause that the chain ends in, or raise limits.stall_fail.", false},
    {"SLUICE-CTL-0016", "The queue refuses the job.",
     "Its memory, its disk or its data directory do not allow the job. The message has its error.",
     "Act on that error; it has a number of its own.", false},
    {"SLUICE-CTL-0017", "Daemons of a role restarted too often within an hour.",
     "The same cause probably kills each new process. The limit is limits.restarts_per_hour.",
     "See the log of that daemon for the cause; it is often memory.", false},
    {"SLUICE-CTL-0018", "The job ended without a single trained step.",
     "Its limits or its data ended it before the first batch was complete.",
     "See `sluice job events JOB`: the data may be too short, or its limits too low.", false},
    {"SLUICE-CTL-0019", "The submitter has as many jobs as the operator allows.",
     "The operator's policy has a quota of jobs that have not ended.",
     "Wait until one has ended, or cancel one. The operator may raise the quota.", true},
    {"SLUICE-CTL-0020", "The state of the job does not allow this verb.",
     "For example a job that has ended cannot be paused.",
     "Do what the hint says; `sluice job describe JOB` shows the state.", false},
    {"SLUICE-CTL-0021", "The job has been started again since it was looked at.",
     "A retry names the incarnation that it goes on from, so that a repeated call does nothing.",
     "Look at it again with `sluice job describe JOB`, then retry.", false},
    {"SLUICE-CTL-0022", "The queue still holds data of the ended job, and is away.",
     "Retry and delete wait until the queue has freed the data.",
     "Start that queue again on its data directory.", true},
    {"SLUICE-CTL-0023", "There is no such daemon.",
     "The id is misspelt, or the daemon has never registered, or was lost long ago and forgotten.",
     "See `sluice daemon list`.", false},
    {"SLUICE-CTL-0024", "The operator's quota of trainers or rollouts does not allow the job.",
     "Its minimum alone is above the quota, or the submitter's other jobs use the quota up.",
     "Ask for less, or let another job end; a job that waits then starts. The operator may raise "
     "the quota.",
     false},
    {"SLUICE-CTL-0025", "The submitter may not use the pool of the job.",
     "The operator's policy lists the pools of daemons that each submitter's jobs may use.",
     "Set resources.pool to one of those in the message, or ask the operator.", false},
    {"SLUICE-CTL-0026", "A value of a submitted job cannot be set.",
     "There is no such key, its value is malformed, or this build applies it at the start only.",
     "Set one of the keys in the hint, or cancel the job and submit it with the new value.", false},
    {"SLUICE-CTL-0027", "Too many people read the logs of jobs at once.",
     "Each reader of `sluice job logs` costs the controller calls to all daemons of the job.",
     "Try again when others have stopped, or end those of yours that follow a job.", true},
    {"SLUICE-CTL-0030", "This controller is a standby.",
     "Of several controllers with one store, one leads and the others refuse calls.",
     "Name all of them, with commas between: the one that leads is found.", true},
    {"SLUICE-CTL-0032", "Too many daemons are registered.",
     "The controller keeps 10,000 daemons, lost ones included. It forgets a lost daemon after an "
     "hour, unless a job needs it or an operator drains it.",
     "End what starts daemons under ever new ids, and undrain lost daemons that do not come back: "
     "`sluice daemon list`. The daemon tries again by itself.",
     true},
    {"SLUICE-CTL-0033", "A path of the job is outside of the submitter's folders.",
     "The operator's policy lists the folders below which each submitter's jobs may read and "
     "write.",
     "Move the files to one of those in the message, or ask the operator.", false},
    {"SLUICE-CTL-0034", "The submitter may not ask a judge or a plug-in server of the job.",
     "The operator's policy lists the judges and servers that each submitter's jobs may ask.",
     "Name one of those in the message in args.judge or args.grpc, or ask the operator.", false},

    // Data files.
    {"SLUICE-DATA-0001", "A row of a data file is bad.",
     "It is not a JSON object, lacks a column that the job names, or is too long.",
     "Correct the line that the message names, or set data.order.on_bad_row: skip.", false},
    {"SLUICE-DATA-0002", "A data file has no rows.",
     "It is empty, or every row was skipped as bad.", "Check the file.", false},
    {"SLUICE-DATA-0003", "The format of a data file is not supported.",
     "JSON lines, Parquet, Arrow and folders of Hugging Face datasets are read.",
     "Convert the file to one of them.", false},
    {"SLUICE-DATA-0004", "No row of a data file can be scored.",
     "The rows lack the reference answer that the verifier needs.",
     "Name the column that holds it, or correct the rows.", false},

    // The controller's store.
    {"SLUICE-META-0001", "There is no such kind of store.",
     "The URL of the store begins with an unknown word.", "Use one of those in the message.",
     false},
    {"SLUICE-META-0002", "The disk of the store is full.",
     "The controller cannot keep what happens. Training goes on.",
     "Free space on the controller's disk.", true},
    {"SLUICE-META-0003", "The store is damaged.",
     "A record or page of it is not as it was written: a failing disk, or a foreign program.",
     "Put the store back from a copy, or move it away to start empty. Checkpoints are not lost.",
     false},
    {"SLUICE-META-0004", "The store cannot be opened.",
     "The controller may not read or write its file or folder.",
     "Give the controller a data directory that it may write.", false},
    {"SLUICE-META-0005", "The store does not answer.",
     "The disk or Redis is slow, gone or restarting. Training goes on.",
     "Wait; calls are repeated. If it stays, look after the disk or Redis.", true},
    {"SLUICE-META-0006", "The store was written by a newer build.",
     "This controller is older than the one before.",
     "Run the build that wrote it, or a newer one.", false},
    {"SLUICE-META-0010", "A Redis is not set up to keep jobs.",
     "With its settings it would forget what it has answered, or it is a replica or a cluster.",
     "Change the setting that the message names in its redis.conf.", false},
    {"SLUICE-META-0011", "Another controller has taken the store.",
     "This one was away or paused for longer than its lease.",
     "Start it again: it then waits until the other one ends.", false},
    {"SLUICE-META-0012", "A Redis is full.", "It has reached its `maxmemory`.",
     "Raise `maxmemory` of that Redis.", true},
    {"SLUICE-META-0013", "A backup of the store is damaged.",
     "The file was cut or changed: a checksum in it is wrong.", "Take another copy of it.", false},
    {"SLUICE-META-0014", "The file is no backup of a store that this build can read.",
     "It was written by another program or by a newer build.",
     "Name a file of `sluice meta backup`, or run the build that wrote it.", false},
    {"SLUICE-META-0015", "The store to restore into is not empty.",
     "A restore replaces all that is there.", "Name an empty store, or give --yes.", false},
    {"SLUICE-META-0016", "A restore of the store was broken off.",
     "Jobs are missing in it, so the controller does not start.",
     "Run `sluice meta restore` with --yes again, to its end.", false},
    {"SLUICE-META-0017", "The Sentinels of the store name no master.",
     "Most of them do not answer, or the Redis that they watch is just failing over.",
     "Wait; it is asked again. If it stays, look after the Sentinels and the Redis.", true},
    {"SLUICE-META-0018", "The URL of the store does not name its Sentinels and their master.",
     "It names a Redis or another program, another NAME than `sentinel monitor NAME`, or not each "
     "Sentinel by an address of its own.",
     "Correct the URL: redis+sentinel://HOST[:PORT],../NAME[/DB].", false},

    // The queue.
    {"SLUICE-QUEUE-0001", "The queue of this build does not support what the job asks for.",
     "The message names the key and its value.", "Choose another value, or a newer build.", false},
    {"SLUICE-QUEUE-0002", "The queue cannot use the spec of the job.",
     "A value in it is malformed. Controller and queue may be of different builds.",
     "Install the same version everywhere.", false},
    {"SLUICE-QUEUE-0003", "Nothing can be learned: the filter rejected too many groups in a row.",
     "All answers to each prompt got the same reward: the prompts are too easy, too hard, or the "
     "reward is broken.",
     "Look at answers with `sluice queue peek JOB GROUP --show-text`, and check reward and data.",
     false},
    {"SLUICE-QUEUE-0004", "A step would train tokens that are older than max_staleness.",
     "The check before training caught it. It is a bug of Sluice.",
     "The job goes back to its last checkpoint. Please report it with `sluice bug-report`.", false},
    {"SLUICE-QUEUE-0005", "No row of the data can be used.",
     "All were dropped, for example because every prompt is longer than data.order.max_prompt.",
     "Correct the data or raise the limit that the message names.", false},
    {"SLUICE-QUEUE-0006", "The disk of the queue's log is full.",
     "The queue takes nothing new, and loses nothing that it has accepted.",
     "Free space on the disk of its --data-dir; the job goes on by itself.", true},
    {"SLUICE-QUEUE-0007", "The job needs a queue with a data directory.",
     "queue.keep.durability is full or metadata, and the queue keeps nothing on disk.",
     "Start sluice-queue with --data-dir DIR, or set queue.keep.durability: memory.", false},
    {"SLUICE-QUEUE-0008", "A data file has changed since the job began.",
     "The cursor of the job would point to other rows.",
     "Put the file back as it was and restart the queue, or submit a new job.", false},
    {"SLUICE-QUEUE-0009", "The queue has too little memory for the job.",
     "The jobs on that queue together need more than its --memory.",
     "Raise --memory, lower group size, answer length or groups_per_step, or run jobs one by one.",
     false},
    {"SLUICE-QUEUE-0010", "The data is used up, and nothing of it could be trained.",
     "Every group was dropped. The message counts the reasons.",
     "See the alarms among `sluice job events JOB`.", false},
    {"SLUICE-QUEUE-0011", "No answer of a data source can be scored.",
     "The reward has failed for so many groups in a row that it will not succeed.",
     "Check the reward and the reference answers of that data source.", false},

    // Connections.
    {"SLUICE-RPC-0001", "The port of --listen is in use.",
     "Another process listens there, often an older daemon.",
     "Stop it, or give another port. `sluice doctor net` names the process.", false},
    {"SLUICE-RPC-0002", "The port of --ops is in use.",
     "Another process listens there, often an older daemon.",
     "Stop it, or give another port. `sluice doctor net` names the process.", false},
    {"SLUICE-RPC-0003", "A daemon listens on all interfaces and names no address.",
     "0.0.0.0 is no address that others can call.",
     "Give --advertise HOST[:PORT], or listen on one interface.", false},
};

constexpr absl::string_view kPrefix = "SLUICE-";

// "queue-4" -> "SLUICE-QUEUE-0004". Any other text comes back in upper case.
std::string FullCode(absl::string_view code) {
  std::string upper = absl::AsciiStrToUpper(code);
  absl::string_view rest = upper;
  absl::ConsumePrefix(&rest, kPrefix);
  const std::pair<std::string, std::string> parts = absl::StrSplit(rest, absl::MaxSplits('-', 1));
  uint32_t number = 0;
  if (parts.second.empty() || !absl::SimpleAtoi(parts.second, &number) || number > 9999)
    return upper;
  return absl::StrFormat("%s%s-%04d", kPrefix, parts.first, number);
}

}  // namespace

absl::Span<const CatalogueRow> ErrorCatalogue() { return kRows; }

const CatalogueRow* FindError(absl::string_view code) {
  const std::string full = FullCode(code);
  const auto found = std::find_if(std::begin(kRows), std::end(kRows),
                                  [&](const CatalogueRow& row) { return row.code == full; });
  return found == std::end(kRows) ? nullptr : &*found;
}

std::vector<std::string> FindSimilarErrors(absl::string_view code) {
  constexpr size_t kMost = 5;
  std::string start = FullCode(code);
  if (!absl::StartsWith(start, kPrefix)) start = std::string(kPrefix) + start;

  // Codes with the longest common beginning, but at least the area.
  std::vector<std::string> similar;
  const size_t area = start.find('-', kPrefix.size());
  for (size_t size = start.size(); area != start.npos && size > area && similar.empty(); --size) {
    for (const CatalogueRow& row : kRows) {
      if (similar.size() < kMost && absl::StartsWith(row.code, start.substr(0, size)))
        similar.emplace_back(row.code);
    }
  }
  if (!similar.empty()) return similar;

  std::vector<absl::string_view> codes;
  for (const CatalogueRow& row : kRows) codes.emplace_back(row.code);
  const absl::string_view nearest = NearestMatch(start, codes);
  if (!nearest.empty()) similar.emplace_back(nearest);
  return similar;
}

}  // namespace sluice
