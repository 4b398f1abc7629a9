"""How operators become primitives: importing this registers every rule."""

from . import attention as attention
from . import conv as conv
from . import dynamic as dynamic
from . import elementwise as elementwise
from . import matmul as matmul
from . import move as move
from . import norm as norm
from . import pool as pool
from . import quantize as quantize
from . import reduce as reduce
from . import resize as resize
from . import rnn as rnn
