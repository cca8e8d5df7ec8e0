"""Numbers of the channel: offsets, kinds of frames, flags, codes. Source: docs/0025-python-channel.md."""
import struct

PROTOCOL = 1
MAGIC = 0x59504C53

LOG_LEVELS_AT = 8     # u32
STATE_AT = 12         # u32
READ_AT = (64, 128, 192, 256)  # u64 of each ring: bytes that its reader is done with
CANCELLED_AT = 4096   # u32 of each slot: generation of the last request that was cancelled there
SLOTS = 4096          # requests of later slots count as not cancelled
RINGS_AT = 20480
RING_SIZE = 262144
MEMORY_SIZE = RINGS_AT + 4 * RING_SIZE
LARGEST_FRAME = 131072

COMMANDS, REPLIES, RESULTS, EVENTS = range(4)  # the rings

# Frames to the process.
LOAD, COMPLETE, INITIALIZE, EXECUTE, FINALIZE = 1, 2, 3, 4, 6
REPLY = 16
# Frames to the worker.
HELLO, LOADED, COMPLETED, INITIALIZED, RESULT, READINESS, FINALIZED, FAILED = 32, 33, 34, 35, 36, 37, 38, 39
PART, DROP, NEED, GIVE, CALL, CALLCANCEL, CONTROL, LOG, METRIC, TAKEN = 48, 49, 50, 51, 52, 53, 54, 55, 56, 57

BODY_ELSEWHERE = 1    # flag of a frame: its body is a segment

HAS_COMPLETE, HAS_INITIALIZE, HAS_EXECUTE, HAS_FINALIZE, HAS_READY, IS_ASYNC = 1, 2, 4, 8, 16, 32  # hooks of LOADED

FRAME, EXCHANGE, REQUESTS, RESPONSES = 0, 1, 2, 3  # areas

OPEN, ANSWERED, RESCHEDULED = 0, 1, 2              # of a request in RESULT
FINAL, HAS_RESPONSE = 1, 2                         # flags of PART and of a call's REPLY

CONTROL_LOAD, CONTROL_UNLOAD, CONTROL_READY, CONTROL_METRIC = 1, 2, 3, 4

ERROR_LEVEL, WARNING_LEVEL, INFO_LEVEL, VERBOSE_LEVEL = 1, 2, 4, 8

BOOL, BYTES, BF16 = 1, 13, 14                      # datatypes with rules of their own
ITEM_SIZES = (0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 0, 2)  # of each datatype

HEADER = struct.Struct("<IBBHQ")   # size, kind, flags, 0, id
SEGMENT = struct.Struct("<BQQ")    # area, offset, length
BATCH = struct.Struct("<IIBQQ")    # requests, rows, grant
REQUEST = struct.Struct("<QQQIIHHI")  # key, correlation, timeout, rows, flags, inputs, outputs, 0
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
